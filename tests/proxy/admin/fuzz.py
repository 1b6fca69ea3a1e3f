"""Fuzz the admin API of a live proxy against its own OpenAPI document: `make admin-fuzz` (ten minutes).

A real proxy with traffic behind it in front of our mock upstream; schemathesis, from an environment of its own, makes
the requests and judges the answers: no server error, no answer that the document does not name, no body that is not
what the document says.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
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
[dictionaries]
pool = {{values = ["chat", "spare"]}}
plan = {{values = ["1", "2", "3", "4", "5"]}}
law = {{values = ["aimd", "bandit", "deadline", "fixed", "gradient", "step"]}}
upstream = {{values = ["{upstream}"]}}

[parameters]
"path.pool" = {{dictionary = "pool", probability = 0.9}}
"path.plan" = {{dictionary = "plan", probability = 0.7}}
"body.law" = {{dictionary = "law", probability = 0.7}}
"body.upstream" = {{dictionary = "upstream", probability = 0.7}}

[checks]
negative_data_rejection.expected-statuses = [
  "400", "401", "403", "404", "405", "406", "409", "411", "412", "413", "415", "422",
]

[[operations]]
include-path = "/admin/v1/pools/{{pool}}/what-if"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]

[[operations]]
include-path = "/readyz"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
"""Names that exist are drawn most of the time: what is refused at the door tries nothing behind it.

412 refuses, too: whoever read an older state is told that first. A simulation that would take too long on a busy
machine is given up with a documented 503, and a proxy whose upstreams were all taken out is not ready."""
ENDLESS = "/admin/v1/events"
"""A stream that goes on until its reader leaves; `tests/proxy/admin/test_events.py` reads it."""


async def traffic(rig: Rig) -> None:
    """Keep some requests going, so that there is something to steer and to simulate from."""
    while True:
        answer = await rig.chat(stream=True)
        await answer.read()
        await asyncio.sleep(0.05)


async def fuzz(schemathesis: str, seconds: float, seed: int) -> int:
    """Let schemathesis have `seconds` of a live proxy; return its exit code."""
    async with AsyncExitStack() as stack, MockUpstream() as upstream:
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "schemathesis.toml"
            config.write_text(CONFIG.format(upstream=upstream.url))
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
                return await _judged(schemathesis, config, rig.admin, seconds, seed)
            finally:
                load.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await load
                await rig.proxy.stop()


async def _judged(program: str, config: Path, admin: str, seconds: float, seed: int) -> int:
    program = str(Path(program).absolute()) if "/" in program else program  # it runs in another folder
    process = await asyncio.create_subprocess_exec(
        program, "--config-file", str(config), "run", f"{admin}/admin/v1/openapi.json",
        "--max-time", f"{seconds:.0f}",
        "--phases", "examples,coverage,fuzzing,stateful", "--seed", str(seed), "--exclude-path", ENDLESS,
        "--checks", CHECKS, "--request-timeout", "60", "--generation-database", "none", "--no-color",
        cwd=config.parent,
    )  # fmt: skip
    return await process.wait()


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
