"""A proxy that learns how long answers will be, acts on it, and still knows after a restart."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from policies.base import Job
from tests.proxy.app.conftest import Rig

POOL = "/admin/v1/pools/default"
SHORT, LONG = "Is {} even? Answer yes or no.", "Write a long detailed essay about the number {}."
SHORT_TOKENS, LONG_TOKENS = 4, 60
"""At most; answers to either kind vary."""


class Talker:
    """Streams many tokens to who asks for an essay and few to everybody else, while `gate` is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.order: list[str] = []
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        prompt = (await request.json())["messages"][0]["content"]
        self.order.append(prompt)
        await self.gate.wait()
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        digest = sum(prompt.encode())
        count = LONG_TOKENS - digest % 21 if "essay" in prompt else SHORT_TOKENS - digest % 3
        for index in range(count):
            end = ',"finish_reason":"stop"' if index == count - 1 else ""
            await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"x"}%b}]}\n\n' % end.encode())
            await asyncio.sleep(0.001)
        await answer.write(b"data: [DONE]\n\n")
        return answer


@pytest.fixture
async def talker() -> AsyncIterator[Talker]:
    talker = Talker()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", talker.chat)
    async with TestServer(app) as server:
        talker.url = str(server.make_url("")).rstrip("/")
        yield talker
        talker.gate.set()


def config(talker: Talker, path: Path, **predictor: Any) -> dict[str, Any]:
    return {
        "upstreams": [talker.url],
        "policy": "predicted",
        "setpoints": {"max_batch_size": {"min": 1, "initial": 16, "max": 16}},
        "state": {"path": str(path / "state.db")},
        "predictor": {"mode": "learn", "min_samples": 20, "min_rows": 150, "retrain_after": 100, **predictor},
    }


async def ask(rig: Rig, prompt: str) -> int:
    """Send one chat, read its answer to the end, return the status."""
    async with await rig.chat(messages=[{"role": "user", "content": prompt}], stream=True) as answer:
        await answer.read()
        return answer.status


async def traffic(rig: Rig, first: int, count: int) -> None:
    places = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with places:
            assert await ask(rig, (LONG if number % 2 else SHORT).format(number)) == 200

    await asyncio.gather(*(one(number) for number in range(first, first + count)))


async def predictor_of(rig: Rig) -> dict[str, Any]:
    report: dict[str, Any] = (await rig.admin_json("GET", POOL))["stats"]["predictor"]
    return report


async def until(rig: Rig, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait until the predictor's report says so."""
    while not condition(report := await predictor_of(rig)):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    return report


async def served_first(rig: Rig, talker: Talker, number: int) -> str:
    """Let a long and then a short request wait for the one place there is; return which was served first."""
    await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 1})
    talker.gate.clear()
    talker.order.clear()
    pool = rig.proxy.pools["default"]
    tasks = []
    for waiting, prompt in enumerate(("hold the place", LONG.format(number), SHORT.format(number))):
        tasks.append(asyncio.create_task(ask(rig, prompt)))
        while len(talker.order) < 1 or len(pool.queue) < waiting:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    talker.gate.set()
    assert await asyncio.gather(*tasks) == [200, 200, 200]
    await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 16})
    return "long" if "essay" in talker.order[1] else "short"


async def statuses_beside_one(rig: Rig, talker: Talker) -> list[int]:
    """Return the statuses of a long and a short request that come while the upstream is busy.

    The promise then is between what the controller forecasts for the two.
    """
    talker.gate.clear()
    talker.order.clear()
    busy = asyncio.create_task(ask(rig, "hold a place"))
    while not talker.order:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.001)
    pool, now = rig.proxy.pools["default"], rig.proxy.clock.now()

    def forecast_s(tokens: float) -> float:
        job = Job("", now, prompt_tokens=12, predicted_tokens_p90=tokens)
        dispatcher = pool.controller.dispatcher
        forecast = dispatcher.upstream.forecast(job, 16, now, pool.load(now), dispatcher.promises, (), form=False)
        assert forecast is not None
        return forecast.done_s

    between = (forecast_s(2 * SHORT_TOKENS) + forecast_s(LONG_TOKENS)) / 2
    await rig.admin_json("PATCH", f"{POOL}/slo", json={"e2e_ms": 1000 * between})
    tasks = []
    for number, prompt in enumerate((LONG, SHORT)):
        now, admission = rig.proxy.clock.now(), pool.controller.dispatcher.admission
        admission.admitted(now)  # as if a probe had just been let through
        admission.record.admitted(-1.0, now, trial=True)  # and somebody to see whether predictions are right
        for _ in range(100):
            admission.room.add(0.9)  # and as if there was little time to spare
        tasks.append(asyncio.create_task(ask(rig, prompt.format(1_000_000 + number))))
        while not tasks[-1].done() and len(talker.order) < 2:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
    talker.gate.set()
    await busy
    return list(await asyncio.gather(*tasks))


async def test_it_learns_orders_admits_and_remembers(tmp_path: Path, talker: Talker) -> None:
    data = config(talker, tmp_path)
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        assert (await predictor_of(rig))["order_by"] == "none"
        assert await served_first(rig, talker, 900_000) == "long", "nothing is known yet: first come, first served"
        await traffic(rig, 0, 200)
        report = await until(rig, lambda report: report["model"] is not None)
        assert (report["order_by"], report["admit_by"]) == ("learned", "learned"), report["steps"]
        assert report["steps"]["learned"]["pinball50_ratio"] < 0.5, report
        assert await served_first(rig, talker, 910_000) == "short", "prompts that were never seen before"
        await traffic(rig, 1000, 40)
        await until(rig, lambda report: report["sources"]["boosted"] >= 40)

        assert await statuses_beside_one(rig, talker) == [503, 200]
        await rig.admin_json("PATCH", f"{POOL}/slo", json={"e2e_ms": None})

        async with rig.http.get(f"{rig.admin}/metrics") as answer:
            text = await answer.text()
        assert 'trimtab_predictor_in_use{pool="default",step="learned",use="order"} 1.0' in text
        assert 'trimtab_predictor_source_total{pool="default",source="boosted"}' in text
        assert 'trimtab_predictor_coverage{pool="default"}' in text

    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        report = await predictor_of(rig)
        assert (report["order_by"], report["model"]["rows"] >= 100) == ("learned", True)
        assert await served_first(rig, talker, 920_000) == "short"


async def test_a_stored_state_that_is_spoilt_is_learned_again(
    tmp_path: Path, talker: Talker, caplog: pytest.LogCaptureFixture
) -> None:
    data = config(talker, tmp_path, mode="history")
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        await traffic(rig, 0, 10)
    with sqlite3.connect(tmp_path / "state.db") as file:
        (lines,) = file.execute("SELECT lines FROM predictors").fetchone()
        assert lines.startswith("head")
        file.execute("UPDATE predictors SET lines = ?", (lines[: len(lines) // 2],))
    file.close()
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, data).start()
        assert "stored predictor state is not taken over" in caplog.text
        assert (await predictor_of(rig))["history_keys"] == 0
        assert await ask(rig, "hello") == 200


async def test_what_is_not_to_be_kept_is_not_kept(tmp_path: Path, talker: Talker) -> None:
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, config(talker, tmp_path, mode="history", persist=False)).start()
        await traffic(rig, 0, 4)
    with sqlite3.connect(tmp_path / "state.db") as file:
        assert file.execute("SELECT count(*) FROM predictors").fetchone() == (0,)
    file.close()


async def test_a_reload_changes_how_lengths_are_predicted_and_forgets_nothing(tmp_path: Path, talker: Talker) -> None:
    async with AsyncExitStack() as stack:
        rig = await Rig(stack, config(talker, tmp_path, mode="history")).start()
        await traffic(rig, 0, 10)
        keys = (await until(rig, lambda report: report["all"]["n"] == 10))["history_keys"]
        assert keys
        rig.reload_to(**config(talker, tmp_path, uses=["order"]))
        await rig.admin_json("POST", "/admin/v1/reload")
        report = await predictor_of(rig)
        assert (report["mode"], report["uses"], report["admit_by"]) == ("learn", ["order"], "off")
        assert report["history_keys"] == keys
        assert report["trainer"]["trainings"] == 0
        rig.reload_to(**config(talker, tmp_path, mode="history"), queue={"max_requests": 7})
        await rig.admin_json("POST", "/admin/v1/reload")
        report = await predictor_of(rig)
        assert (report["mode"], report["history_keys"], report["trainer"]) == ("history", keys, None)
        rig.reload_to(**config(talker, tmp_path, mode="off"))
        await rig.admin_json("POST", "/admin/v1/reload")
        assert await predictor_of(rig) == {"mode": "off"}
        assert await ask(rig, "hello") == 200
