"""`trimtab up` with the demo model: real text, many streams, a controller that is steered while it runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.load import PROMPTS, Load, stream, streaming_load
from tests.e2e.spine_process import Up, samples
from tests.e2e.worker_process import eventually
from tests.support.late import late

openai = late("openai")

POLL_S = 45.0
"""Ten ticks of a second, and room for a machine that is busy with something else."""


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        yield session


@pytest.fixture
async def client(up: Up) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{up.proxy}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def as_configured(up: Up) -> Any:
    """Undo what a test turned."""
    yield
    up.pool("PATCH", "/slo", {"ttft_ms": None, "tpot_ms": None, "e2e_ms": None})
    up.pool("DELETE", "/pins")


async def test_the_capital_of_france_is_paris(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(
        model="demo", prompt="The capital of France is", max_tokens=8, temperature=0
    )
    assert "Paris" in answer.choices[0].text


async def test_chat_streams_through_with_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0, max_tokens=16, stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    text, usage = "", None
    async for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert "Paris" in text
    assert usage is not None
    assert usage.completion_tokens


async def test_concurrent_streams_share_steps_and_short_ones_return_first(
    up: Up, http: aiohttp.ClientSession
) -> None:
    lengths = [3, 4, 5, 6, 28, 30, 32, 34]
    order: list[int] = []
    before = await asyncio.to_thread(samples, up.worker)

    async def one(index: int, length: int) -> None:
        failure = await stream(http, up.proxy, length, PROMPTS[index % len(PROMPTS)])
        assert failure is None
        order.append(length)

    await asyncio.gather(*[one(index, length) for index, length in enumerate(lengths)])
    after = await asyncio.to_thread(samples, up.worker)
    assert sorted(order[:4]) == lengths[:4]
    rows, steps = (
        after[f"trimtab_worker_{name}"] - before[f"trimtab_worker_{name}"]
        for name in ("step_sequences_total", "steps_total")
    )
    assert rows / steps > 1, "sequences share steps"


async def moves(up: Up, load: Load, tpot_ms: float, down: bool) -> dict[str, Any]:
    """Set a target and wait until the knob has moved in the right direction; return the decision that moved it."""
    start = await asyncio.to_thread(up.pool)
    size = start["setpoints"]["max_batch_size"]
    last = (await asyncio.to_thread(up.pool, "GET", "/decisions?limit=1"))["last_id"]
    await asyncio.to_thread(up.pool, "PATCH", "/slo", {"tpot_ms": tpot_ms})

    def moved() -> bool:
        now = up.pool()["setpoints"]["max_batch_size"]
        return bool(now < size if down else now > size)

    await asyncio.to_thread(eventually, moved, within_s=POLL_S)
    decisions = (await asyncio.to_thread(up.pool, "GET", f"/decisions?since={last}"))["decisions"]
    assert [d["actor"].startswith("admin:") for d in decisions].count(True) == 1, "who changed the promise is written"
    for decision in decisions:
        assert decision["text"].strip()
        assert decision["rule"]

    def in_the_right_direction(decision: dict[str, Any]) -> bool:
        new = decision["new"].get("max_batch_size", size)
        return decision["actor"] == "controller" and bool(new < size if down else new > size)

    return next(dict(decision) for decision in decisions if in_the_right_direction(decision))


async def test_a_promise_halved_and_raised_moves_the_batch_size_and_says_why(up: Up) -> None:
    async with streaming_load(up.proxy, clients=12, tokens=(5, 10)) as load:

        def settled() -> bool:
            return bool(up.pool()["live"]["quantiles"]["tpot"]["n"] >= 20)

        await asyncio.to_thread(eventually, settled, within_s=POLL_S)
        p50_ms = (await asyncio.to_thread(up.pool))["live"]["quantiles"]["tpot"]["p50"]["value_ms"]
        for target_ms, down in ((p50_ms / 2, True), (p50_ms * 50, False)):
            decision = await moves(up, load, target_ms, down)
            assert decision["seen"], "what the controller saw"
            assert decision["pool"] == "default"
    assert load.failures == []


async def test_pins_and_laws_take_effect_under_load(up: Up) -> None:
    async with streaming_load(up.proxy, clients=6, tokens=(2, 4)) as load:
        await load.more(3)
        pinned = await asyncio.to_thread(up.pool, "PATCH", "/setpoints", {"max_batch_size": 2})
        assert (pinned["pins"], pinned["setpoints"]["max_batch_size"]) == ({"max_batch_size": 2.0}, 2)
        await asyncio.to_thread(eventually, lambda: up.pool()["inflight"] <= 2)
        for _ in range(3):
            await load.more(1)
            assert (await asyncio.to_thread(up.pool))["inflight"] <= 2
        freed = await asyncio.to_thread(up.pool, "DELETE", "/pins")
        assert freed["pins"] == {}
        fixed = await asyncio.to_thread(up.pool, "PUT", "/law", {"law": "fixed"})
        assert fixed["law"] == "fixed"
        await load.more(3)
        back = await asyncio.to_thread(up.pool, "PUT", "/law", {"law": "aimd"})
        assert back["law"] == "aimd"
        await load.more(3)
    assert load.failures == []
    rules = [d["rule"] for d in up.pool("GET", "/decisions?limit=20")["decisions"]]
    assert len({rule for rule in rules if "pin" in rule or "law" in rule}) >= 3, rules


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(up: Up, http: aiohttp.ClientSession) -> None:
    chance = random.Random(7)
    await asyncio.to_thread(up.pool, "PATCH", "/setpoints", {"max_batch_size": 6})
    left: list[str] = []

    async def leave(patience_s: float, length: int, prompt: str) -> None:
        try:
            async with asyncio.timeout(patience_s):
                failure = await stream(http, up.proxy, length, prompt)
                assert failure is None
        except TimeoutError:
            left.append(prompt)

    plans = [(chance.uniform(0.0, 3.0), chance.randint(8, 80), chance.choice(PROMPTS)) for _ in range(60)]
    await asyncio.gather(*[leave(*plan) for plan in plans])
    assert len(left) > 20, "most were in the middle of something"

    def settled() -> bool:
        pool = up.pool()
        held = (pool["inflight"], pool["queued"], pool["stats"]["leases"])
        blocks = samples(up.worker)
        return held == (0, 0, 0) and blocks["trimtab_worker_kv_blocks_owned"] == 0

    await asyncio.to_thread(eventually, settled)
    blocks = samples(up.worker)
    free, cached = (blocks[f"trimtab_worker_kv_blocks_{kind}"] for kind in ("free", "cached"))
    assert free + cached == blocks["trimtab_worker_kv_blocks_total"]
    assert await stream(http, up.proxy, 4, PROMPTS[0]) is None
