"""`python -m backend --model PATH`: the bundled worker."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from backend.arguments import PROGRAM, parse_arguments

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker; return the exit code: 0 stopped, 1 the engine died, 2 it could not start as asked."""
    arguments = parse_arguments(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    # After the arguments, so that --help and a wrong flag answer at once.
    import uvloop
    from prometheus_client import disable_created_metrics

    from backend.engine.errors import EngineError
    from backend.lifecycle import StartError, run_worker
    from backend.models.errors import ModelError

    disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run_worker(arguments))
    except (StartError, EngineError, ModelError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
