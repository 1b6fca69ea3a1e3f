"""A state file that is damaged or in the way: the proxy serves, takes orders, and says what it did.

Every case is a process of its own that is started on the file, asked once through the data plane, told to pin a
setpoint, and asked for its audit log. Said means: in its log, at level warning or error.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from benchmarks.bars import Bar
from benchmarks.serving import serving
from tests.support.damaged_state import DAMAGES

__all__ = ["measure"]

_QUICK = ("half", "noise", "odd requests", "a pipe")
_UNSAID = frozenset(
    {"empty", "no tables", "a flipped bit", "odd page size", "free list", "a log of noise", "page count"}
)
"""What SQLite mends by itself, or what leaves no trace where it was looked for."""
_AT_ONCE = 2
_CHAT = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
_ANSWER = {"object": "list", "data": []}


class _Outcome(NamedTuple):
    served: bool
    obeyed: bool
    said: bool


def measure(quick: bool) -> list[Bar]:
    """Run every case; return how many did not serve, did not take orders, and said nothing."""
    return asyncio.run(_measure(_QUICK if quick else tuple(DAMAGES)))


async def _measure(names: tuple[str, ...]) -> list[Bar]:
    gate = asyncio.Semaphore(_AT_ONCE)
    async with _Upstream() as url:
        with tempfile.TemporaryDirectory() as folder:
            good = Path(folder) / "good" / "state.db"
            good.parent.mkdir()
            await _kept(url, good)

            async def case(name: str) -> tuple[str, _Outcome]:
                async with gate:
                    return name, await _case(url, good, Path(folder) / f"case-{names.index(name)}", name)

            found = dict(await asyncio.gather(*map(case, names)))
            two = await _two(url, Path(folder))
    for name, outcome in found.items():
        if not all(outcome):
            print(f"  {name}: {outcome}")
    silent = [name for name, outcome in found.items() if not outcome.said and name not in _UNSAID]
    return [
        Bar.below(f"state files, of {len(found)}: not served", sum(not one.served for one in found.values()), 0),
        Bar.below("state files: took no orders", sum(not one.obeyed for one in found.values()), 0),
        Bar.below("state files: nothing said", len(silent), 0),
        Bar("two proxies on one file: both serve, the second says so", float(two), 1.0, two),
    ]


class _Upstream:
    """Answers everything."""

    async def __aenter__(self) -> str:
        async def answer(_: web.Request) -> web.Response:
            return web.json_response(_ANSWER)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        server: Any = site._server
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


async def _kept(url: str, path: Path) -> None:
    """Make a good file: pins, decisions, and requests to learn from."""
    outcome, _ = await _ask(url, path, path.parent)
    assert outcome.served
    assert outcome.obeyed


async def _case(url: str, good: Path, folder: Path, name: str) -> _Outcome:
    path = folder / "state" / "state.db"
    path.parent.mkdir(parents=True)
    for file in good.parent.glob("state.db*"):
        if file.suffix != ".lock":
            shutil.copy(file, path.parent)
    DAMAGES[name](path)
    outcome, log = await _ask(url, path, folder)
    return outcome._replace(said=any(_warnings(log)))


async def _ask(url: str, path: Path, folder: Path) -> tuple[_Outcome, str]:
    config = {"upstreams": [url], "state": {"path": str(path)}, "log": {"format": "json"}}
    async with serving(config, folder) as served, aiohttp.ClientSession() as session:
        statuses = []
        for _ in range(5):
            async with session.post(
                f"{served.proxy}/v1/chat/completions", json={"model": "m", "messages": []}
            ) as one:
                statuses.append(one.status)
        obeyed = await _orders(session, served.admin)
    return _Outcome(statuses == [200] * 5, obeyed, False), (folder / "stderr.txt").read_text()


async def _orders(session: aiohttp.ClientSession, admin: str) -> bool:
    pool = f"{admin}/admin/v1/pools/default"
    async with session.patch(f"{pool}/setpoints", json={"max_batch_size": 9}) as patched:
        done = patched.status == 200
    async with session.get(f"{admin}/admin/v1/audit") as audit:
        done = done and audit.status == 200
        rules = [entry["rule"] for entry in (await audit.json())["decisions"]] if audit.status == 200 else []
    return done and rules[:1] == ["admin.pin"]


def _warnings(log: str) -> Iterator[str]:
    for line in log.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            if entry["level"] in ("warning", "error"):
                yield entry["message"]


async def _two(url: str, folder: Path) -> bool:
    path = folder / "shared.db"
    for name in ("first", "second"):
        (folder / name).mkdir()
    config = {"upstreams": [url], "state": {"path": str(path)}, "log": {"format": "json"}}
    async with serving(config, folder / "first") as first:
        outcome, log = await _ask(url, path, folder / "second")
        owner = str(first.process.pid)
        said = any(owner in message for message in _warnings(log))
        async with aiohttp.ClientSession() as session:
            return outcome.served and outcome.obeyed and said and await _orders(session, first.admin)
