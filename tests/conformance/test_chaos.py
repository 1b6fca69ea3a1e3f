"""Everything goes wrong at once: nobody gets somebody else's answer, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import random
from typing import Any

import pytest

from tests.support.faults import FAULTS
from tests.support.mock_upstream import Behaviour, MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

BEHAVIOURS: tuple[dict[str, Any], ...] = ({}, {}, {}, {}, *FAULTS)
CONFIG: dict[str, Any] = {
    "setpoints": {"max_batch_size": {"initial": 6, "max": 64}, "window_ms": {"initial": 1, "max": 50}},
    "timeouts": {"connect_ms": 500, "first_byte_ms": 150, "between_chunks_ms": 100, "total_ms": 1000},
    "queue": {"max_requests": 40, "max_wait_ms": 1000},
    "health": {"eject_after": 4, "eject_ms": 100, "interval_ms": 100, "timeout_ms": 100},
}
CODES = {200, 401, 404, 422, 429, 500, 502, 503, 504}


class Chaos:
    def __init__(self, stack: Stack, rng: random.Random) -> None:
        self.stack = stack
        self.rng = rng
        self.good = 0

    async def visitor(self, number: int) -> None:
        rng = self.rng
        await asyncio.sleep(rng.random() * 0.8)
        mock = rng.choice(BEHAVIOURS)
        leaves = rng.random() < 0.2
        kind = rng.choice(["chat", "stream", "embed", "embed", "embed", "relay"])
        path, body = {
            "chat": ("/v1/chat/completions", {"model": "m", "messages": [], "n": 1}),
            "stream": ("/v1/chat/completions", {"model": "m", "messages": [], "stream": True}),
            "embed": ("/v1/embeddings", {"model": "m", "input": f"item {number}"}),
            "relay": (f"/elsewhere/{number}", {"number": number}),
        }[kind]
        async with RawClient(self.stack.port) as client:
            client.send(request_bytes("POST", path, body=body, mock=None if kind == "embed" else mock))
            if leaves:
                await asyncio.sleep(rng.random() * 0.05)
                client.abort()
                return
            answer = await client.answer(timeout=15)
        assert answer.status in CODES, answer
        if answer.status != 200 or not answer.complete or answer.body.startswith(b'{"error"'):
            return
        self.good += 1
        if kind == "embed":
            assert answer.json["data"][0]["embedding"] == [float(len(f"item {number}")), float(number)]
        elif kind == "stream":
            assert answer.body == b"".join(chat_stream(4))
        elif kind == "relay":
            assert answer.json["path"] == path


async def meddle(ups: list[MockUpstream], rng: random.Random) -> None:
    """Upstreams misbehave to everybody for a while, die and come back."""
    while True:
        await asyncio.sleep(0.05)
        up = rng.choice(ups)
        what = rng.random()
        if what < 0.3:
            up.default = Behaviour(**rng.choice(BEHAVIOURS))
        elif what < 0.6:
            up.default = Behaviour()
        elif what < 0.8:
            up.close_idle()
        else:
            port = up.port
            await up.stop()
            await asyncio.sleep(0.03)
            await up.start(port)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dispatch", ["auto", "merge"])
async def test_chaos(seed: int, dispatch: str) -> None:
    rng = random.Random(seed)
    async with (
        MockUpstream() as one,
        MockUpstream() as two,
        Stack(one.url, two.url, dispatch=dispatch, **CONFIG) as stack,
    ):
        chaos = Chaos(stack, rng)
        meddler = asyncio.create_task(meddle([one, two], rng))
        await asyncio.gather(*[chaos.visitor(n) for n in range(300)])
        meddler.cancel()
        await asyncio.gather(meddler, return_exceptions=True)
        await stack.settled()
        assert chaos.good > 5
        for up in (one, two):
            up.default = Behaviour()
        async with asyncio.timeout(5), RawClient(stack.port) as client:
            # Ejections last up to ten times 100 ms.
            while (await client.ask("POST", "/v1/embeddings", body={"model": "m", "input": "x"})).status != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await stack.settled()
        seen = [obs for obs, _, _ in stack.counts.finished]
        assert all(obs.done >= obs.arrival for obs in seen)


async def test_objects_do_not_pile_up() -> None:
    """Thousands of requests of every kind leave no more objects than hundreds did."""
    async with MockUpstream() as up, Stack(up.url) as stack:

        async def some(count: int) -> None:
            async with RawClient(stack.port) as client:
                for n in range(count):
                    await client.ask("POST", "/v1/chat/completions", body={"model": "m", "messages": []})
                    await client.ask(
                        "POST", "/v1/chat/completions", body={"model": "m", "messages": [], "stream": True}
                    )
                    await client.ask("POST", "/v1/embeddings", body={"model": "m", "input": str(n)})
                    await client.ask("GET", f"/path/{n}")
            stack.counts.finished.clear()
            stack.counts.batches.clear()
            up.seen.clear()

        await some(100)
        gc.collect()
        before = len(gc.get_objects())
        await some(400)
        gc.collect()
        # The controller's windows and the route cache still fill up to their bounds.
        assert len(gc.get_objects()) - before < 8000
        await stack.settled()
