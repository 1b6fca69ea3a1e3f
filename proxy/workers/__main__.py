"""`python -m proxy.workers LINE LISTENING`: started by the supervisor, with two inherited descriptors."""

from __future__ import annotations

import sys

from proxy.compiled import activate


def _main(line: int, listening: int) -> None:
    activate()
    # Not at the top: what is imported from here on may be compiled.
    from proxy.process.allocator import return_large_blocks
    from proxy.run import calm_collector, run_loop
    from proxy.workers.worker import main

    calm_collector()
    return_large_blocks()
    run_loop(main(line, listening))


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
