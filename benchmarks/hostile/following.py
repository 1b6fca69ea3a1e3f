"""Two servers that keep what they make, and callers who follow up on it: how many follow-ups are lost.

Each cell is a routing strategy, whole or streamed: responses are made, and 30 times followed up by
`previous_response_id` and by path. Then one server goes: whoever follows up on what it keeps must be told so, and the
other one must not be asked. Last, a flood of ids that nobody has made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from benchmarks.bars import Bar
from proxy.upstream.keepers import MOST_IDS
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient
from tests.support.stateful_upstream import StatefulUpstream

__all__ = ["measure"]

_PATH = "/v1/responses"
_FOLLOW_UPS = 30
_FLOOD, _QUICK_FLOOD = 40_000, 2_000
_STRATEGIES: tuple[Any, ...] = (
    "least-work",
    "round-robin",
    "prefix",
    {"strategy": "sticky", "header": "x-session-id"},
)


def measure(quick: bool) -> list[Bar]:
    """Run the cells; return what was lost, what was told, and what a flood of ids left behind."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    return asyncio.run(_all(quick))


async def _all(quick: bool) -> list[Bar]:
    lost = untold = strayed = 0
    strategies = _STRATEGIES[:2] if quick else _STRATEGIES
    cells = [(strategy, stream) for strategy in strategies for stream in (False, True)]
    for strategy, stream in cells:
        found = await _cell(strategy, stream)
        lost, untold, strayed = lost + found[0], untold + found[1], strayed + found[2]
    remembered = await _flood(_QUICK_FLOOD if quick else _FLOOD)
    return [
        Bar.below(f"follow-ups lost of {2 * _FOLLOW_UPS * len(cells)}", lost, 0),
        Bar.below(f"follow-ups whose keeper is away that are not told so, of {2 * len(cells)}", untold, 0),
        Bar.below("follow-ups that were tried elsewhere", strayed, 0),
        Bar.below("invented ids that are remembered", remembered[0], 0),
        Bar.below("made ids that are remembered", remembered[1], MOST_IDS),
    ]


async def _cell(strategy: Any, stream: bool) -> tuple[int, int, int]:
    """Return how many follow-ups were lost, how many were not told who is away, and how many strayed."""
    config: dict[str, Any] = {"routing": strategy, "queue": {"upstream_wait_ms": 0}, "retries": {"on": ["connect"]}}
    async with (
        StatefulUpstream() as one,
        StatefulUpstream() as two,
        Stack(one.url, two.url, **config) as stack,
        RawClient(stack.port) as client,
    ):
        ids: list[str] = []
        lost = 0
        for turn in range(6 + _FOLLOW_UPS):
            more = {"previous_response_id": ids[-1 - turn % 5]} if turn >= 6 else {}
            body = {"model": "m", "input": "hi", "stream": stream, **more}
            answer = await client.ask("POST", _PATH, {"X-Session-Id": f"s{turn}"}, body=body)
            if answer.status != 200:
                lost += 1
                continue
            text = answer.body.partition(b"data: ")[2].partition(b"\n")[0] if stream else answer.body
            ids.append(json.loads(text)["response"]["id"] if stream else json.loads(text)["id"])
            if turn >= 6:
                lost += (await client.ask("GET", f"{_PATH}/{ids[turn % len(ids)]}")).status != 200
        while not one.kept:
            await client.ask("POST", _PATH, body={"model": "m", "input": "hi"})
        gone = next(iter(one.kept))
        await one.stop()
        before = len(two.asked)
        body = {"model": "m", "input": "hi", "stream": stream, "previous_response_id": gone}
        told = [await client.ask("POST", _PATH, body=body), await client.ask("GET", f"{_PATH}/{gone}")]
        untold = sum((answer.status, answer.header("x-trimtab-reason")) != (503, "keeper_away") for answer in told)
        return lost, untold, len(two.asked) - before


async def _flood(count: int) -> tuple[int, int]:
    """Return how many of `count` invented ids, and of as many made ones, are remembered."""
    async with StatefulUpstream() as one, StatefulUpstream() as two, Stack(one.url, two.url) as stack:
        keepers = stack.pool.keepers
        assert keepers is not None
        async with RawClient(stack.port) as client:
            for number in range(count // 20):
                await client.ask("GET", f"{_PATH}/resp_{number}")
        invented = len(keepers)
        for number in range(count):
            keepers.made(f"resp_{number}", one.url)
        return invented, len(keepers)
