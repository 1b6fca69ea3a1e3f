"""Fuzz the admin API of a live proxy against its own OpenAPI document: `make admin-fuzz` (ten minutes).

A real proxy with traffic behind it in front of our mock upstream; schemathesis, from an environment of its own, makes
the requests and judges the answers: no server error, no answer that the document does not name, no body that is not
what the document says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from tests.proxy.app.conftest import Rig
from tests.support.mock_upstream import MockUpstream

__all__ = ["main"]

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method,response_headers_conformance"
)
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [
  "400", "401", "403", "404", "405", "406", "409", "411", "412", "413", "415", "422",
]
"""
"""412 refuses, too: whoever read an older state is told that first."""
ENDLESS = "/admin/v1/events"
"""A stream that goes on until its reader leaves; `tests/proxy/admin/test_events.py` reads it."""


async def traffic(rig: Rig) -> None:
    """Keep some requests going, so that there is something to steer and to simulate from."""
    while True:
        answer = await rig.chat(stream=True)
        await answer.read()
        await asyncio.sleep(0.05)


async def fuzz(schemathesis: str, seconds: float, seed: int) -> int:
    """Run passes of growing depth until the time is up or one finds something; return the exit code."""
    async with AsyncExitStack() as stack, MockUpstream() as upstream:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "schemathesis.toml"
            config.write_text(CONFIG)
            rig = Rig(
                stack,
                {
                    "pools": [
                        {"name": "chat", "upstreams": [upstream.url], "slo": {"ttft_ms": 5000, "e2e_ms": 60_000}},
                        {"name": "spare", "match": {"models": ["never"]}, "upstreams": [upstream.url]},
                    ],
                    "log": {"level": "error"},
                    "state": {"path": str(Path(folder) / "state.db")},
                },
            )
            await rig.start()
            load = asyncio.create_task(traffic(rig))
            try:
                program = (schemathesis, "--config-file", str(config))
                return await _passes(program, rig.admin, time.monotonic() + seconds, seed)
            finally:
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
                await rig.proxy.stop()


async def _passes(program: tuple[str, ...], admin: str, end: float, seed: int) -> int:
    examples, number = 20, 0
    while (left := end - time.monotonic()) > 5:
        process = await asyncio.create_subprocess_exec(
            *program, "run", f"{admin}/admin/v1/openapi.json", "--phases", "examples,coverage,fuzzing,stateful",
            "--max-examples", str(examples), "--seed", str(seed + number), "--exclude-path", ENDLESS,
            "--checks", CHECKS, "--request-timeout", "20", "--generation-database", "none", "--no-color",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        reading = asyncio.create_task(process.communicate())
        done, _ = await asyncio.wait({reading}, timeout=left)
        if not done:
            process.terminate()
        output = (await reading)[0].decode()
        number += 1
        if done and process.returncode:
            print(output)
            return 1
        cases = re.search(r"(\d+) generated", output)
        found = f"nothing found in {cases[1]} cases" if done and cases else "cut short by the clock"
        print(f"pass {number}, {examples} examples an operation: {found}", flush=True)
        examples = min(2 * examples, 500)
    return 0


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemathesis", default="schemathesis", help="the program")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return asyncio.run(fuzz(options.schemathesis, options.seconds, options.seed))


if __name__ == "__main__":
    sys.exit(main())
