"""The bundled worker, its event loop probed from within: `python -m benchmarks.hostile.worker_probed MODEL`.

Announces itself as the worker does, and tells on SIGUSR1 what `benchmarks.hostile.probed` tells of the proxy.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from backend.arguments import parse_arguments
from backend.lifecycle import run_worker
from benchmarks.hostile.probed import Probe


async def _run(model: str) -> int:
    probe = Probe()
    code = await run_worker(parse_arguments(["--model", model, "--port", "0", "--threads", "1"]))
    del probe
    return code


def main() -> int:
    """Serve until a signal ends it."""
    logging.basicConfig(level="ERROR")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
