"""A server that fails fast beside one that is well: how many callers it costs an answer.

Each cell is a wire format and a way to fail, from a status of 401 to a stream without its end mark. The sick server
answers at once, the other one takes its time, which is what makes failing attractive. Some cells are run under every
routing strategy. A caller has failed that did not get the well server's answer, byte for byte.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.bars import Bar
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient
from tests.support.sick import FORMATS, Ask, Script, ScriptedServer, failures, well

__all__ = ["measure"]

_MOST = 0.02
_LEARNING = 10
"""Requests that it may take to find out."""
_CALLERS = 4
_EVERY_S = 0.04
"""Between two requests of a caller."""
_TAKES_S = 0.005
"""For the well server to answer."""
_CELL_S, _QUICK_CELL_S = 5.0, 1.2
_FEWEST, _QUICK_FEWEST = 150, 60
"""Requests a cell, however slow the machine, in six times its time at most: a share of a handful says nothing."""
_AT_ONCE, _QUICK_AT_ONCE = 8, 16
_STRATEGIES: dict[str, Any] = {
    "round-robin": "round-robin",
    "prefix": "prefix",
    "sticky": {"strategy": "sticky", "header": "x-session-id"},
}
"""Beside least-work, which all cells are run under."""
_UNDER_ALL = ("status 401", "status 404", "status 429", "status 500", "error in 200", "closes unheard")


class Cell(NamedTuple):
    """One way to fail, in one format, under one strategy."""

    ask: Ask
    shape: str
    script: Script
    strategy: str


def measure(quick: bool) -> list[Bar]:
    """Run the cells; return the worst share of failed callers for each way to fail."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    cells = list(_cells(quick))
    counts = asyncio.run(_all(cells, quick))
    shares = [failed / max(1, asked) for failed, asked in counts]
    worst: dict[str, float] = defaultdict(float)
    formats: dict[str, int] = defaultdict(int)
    for cell, share, (failed, asked) in zip(cells, shares, counts, strict=True):
        name = cell.shape if cell.strategy == "least-work" else f"any way, {cell.strategy}"
        worst[name] = max(worst[name], share)
        formats[name] += 1
        if share > _MOST:
            print(
                f"  {share:.1%} failed, {failed} of {asked}: {cell.ask.name}, {cell.shape}, {cell.strategy}",
                flush=True,
            )
    fewest = min(asked for _, asked in counts)
    print(
        f"  {len(cells)} cells, {sum(shares) / len(shares):.2%} failed in the mean; {fewest} requests or more",
        flush=True,
    )
    bars = [
        Bar.below(f"callers that fail beside a sick server: {name}, worst of {formats[name]}", share, _MOST)
        for name, share in worst.items()
    ]
    return [Bar.above("cells", len(cells), 20), *bars]


def _cells(quick: bool) -> Iterator[Cell]:
    """Yield every cell; in a hurry, each way to fail once, each time in another format."""
    seen: set[str] = set()
    asks = list(FORMATS.values())
    turn = 0
    for index in range(len(asks)):
        for offset, (shape, script) in enumerate(failures(asks[index]).items()):
            if not quick:
                yield Cell(asks[index], shape, script, "least-work")
            elif shape not in seen and (offset + index) % 3 == 0:
                seen.add(shape)
                turn += 1
                yield Cell(asks[index], shape, script, "least-work")
    for strategy in _STRATEGIES:
        for shape in _UNDER_ALL[:2] if quick else _UNDER_ALL:
            ask = FORMATS["openai chat"]
            yield Cell(ask, shape, failures(ask)[shape], strategy)


async def _all(cells: list[Cell], quick: bool) -> list[tuple[int, int]]:
    side_by_side = asyncio.Semaphore(_QUICK_AT_ONCE if quick else _AT_ONCE)

    async def one(cell: Cell) -> tuple[int, int]:
        async with side_by_side:
            if quick:
                return await _count(cell, _QUICK_CELL_S, _QUICK_FEWEST)
            return await _count(cell, _CELL_S, _FEWEST)

    return await asyncio.gather(*map(one, cells))


async def _count(cell: Cell, span_s: float, fewest: int) -> tuple[int, int]:
    """Return how many callers failed, and how many there were, those of the beginning aside."""
    clock = asyncio.get_running_loop().time
    ask = cell.ask
    expected = b"".join(ask.pieces)
    fates: list[bool] = []
    config: dict[str, Any] = {} if cell.strategy == "least-work" else {"routing": _STRATEGIES[cell.strategy]}

    async def caller(number: int) -> None:
        began = clock()
        async with RawClient(stack.port) as client:
            while (took := clock() - began) < span_s or (len(fates) < fewest and took < 6.0 * span_s):
                session = {"X-Session-Id": str(number)}
                got = await client.ask("POST", ask.path, session, body=ask.body)
                fates.append(got.status != 200 or not got.complete or got.body != expected)
                if not got.complete:
                    await client.__aexit__()
                    await client.__aenter__()
                await asyncio.sleep(_EVERY_S)

    async with (
        ScriptedServer(cell.script) as sick,
        ScriptedServer(well(ask), delay_s=_TAKES_S) as good,
        Stack(sick.url, good.url, **config) as stack,
    ):
        await asyncio.gather(*map(caller, range(_CALLERS)))
    later = fates[_LEARNING:]
    return sum(later), len(later)
