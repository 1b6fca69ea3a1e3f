"""Trying a change on paper: it answers from real traffic, in the right direction, and changes nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from click.testing import CliRunner

from controller.observation import Observation, Result
from controller.simulator.whatif import MIN_REQUESTS, Settings, TooLittle, frame
from proxy.cli import main
from tests.proxy.admin.operator import CONFIG, FakeOperator
from tests.proxy.admin.test_api import ok, problem

PATH = "/admin/v1/pools/chat/what-if"


def batches(count: int, per_s: float, size: int) -> list[Observation]:
    """Return requests at an upstream that takes 40 ms and 2 ms more for each item of a batch."""
    draw = random.Random(3)
    found, at = [], 0.0
    for _ in range(count):
        at += draw.expovariate(per_s)
        batch = draw.choice((1, size // 2, size))
        service = 0.04 + 0.002 * batch
        found.append(
            Observation("chat", at, at + 0.01 + service, Result.OK, 0, dispatched=at + 0.01, batch=batch,
                        prompt_tokens=20, output_tokens=0)
        )  # fmt: skip
    return found


def streams(count: int, per_s: float, limit: int) -> list[Observation]:
    """Return streams at an engine whose tokens take 5 ms and 1 ms more for each sequence beside them."""
    draw = random.Random(3)
    found, at = [], 0.0
    for _ in range(count):
        at += draw.expovariate(per_s)
        batch, tokens = draw.randint(1, limit), draw.randint(20, 60)
        first = at + 0.05
        last = first + (0.005 + 0.001 * batch) * (tokens - 1)
        found.append(
            Observation("chat", at, last, Result.OK, 0, dispatched=at + 0.01, first_byte=first, last_byte=last,
                        batch=batch, prompt_tokens=100, output_tokens=tokens, streamed=True)
        )  # fmt: skip
    return found


@pytest.fixture
def operator(request: pytest.FixtureRequest) -> FakeOperator:
    dispatch = getattr(request, "param", "merge")
    pool = CONFIG["pools"][0] | {"dispatch": dispatch, "slo": {"e2e_ms": 400}, "law": "fixed"}
    made = FakeOperator({"pools": [pool]}, mode=dispatch)
    made.observations["chat"] = batches(400, 60.0, 32) if dispatch == "merge" else streams(300, 20.0, 16)
    return made


async def test_a_batch_of_one_could_not_carry_the_load(api: TestClient, operator: FakeOperator) -> None:
    found = await ok(api, "POST", PATH, json={"setpoints": {"max_batch_size": 1}})
    assert (found["requests"], found["now"]["offered"]) == (400, 400)
    lost = found["then"]["refused_share"] + found["then"]["shed_share"] + found["then"]["late_share"]
    assert lost > 0.2
    assert found["then"]["goodput"] < found["now"]["goodput"]
    assert operator.pools["chat"].controller.pins == {}, "it was only on paper"
    assert len(operator.pools["chat"].controller.decisions) == 0


@pytest.mark.parametrize("operator", ["gate"], indirect=True)
async def test_one_sequence_at_a_time_could_not_either(api: TestClient) -> None:
    found = await ok(api, "POST", PATH, json={"setpoints": {"max_batch_size": 1}})
    assert found["then"]["goodput"] < 0.8 * found["now"]["goodput"]


async def test_no_change_changes_nothing(api: TestClient) -> None:
    found = await ok(api, "POST", PATH, json={})
    assert found["now"] == found["then"]


async def test_a_stricter_promise_is_kept_less_often(api: TestClient) -> None:
    found = await ok(api, "POST", PATH, json={"slo": {"e2e_ms": 60}, "law": {"law": "aimd"}})
    assert found["then"]["goodput"] < found["now"]["goodput"]


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"setpoints": {"max_batch_size": 999}}, "max_batch_size: got 999; accepted: 1 to 64"),
        ({"slo": {"e2e": 5}}, "slo.e2e: unknown key; did you mean e2e_ms?"),
        ({"law": {"law": "wishful"}}, "law: unknown law 'wishful'"),
        ({"knobs": {}}, "knobs: unknown key"),
    ],
)
async def test_what_would_be_refused_is_refused(api: TestClient, body: dict[str, Any], detail: str) -> None:
    assert (await problem(api, "POST", PATH, 422, json=body))["detail"].startswith(detail)


async def test_without_traffic_it_says_so(api: TestClient, operator: FakeOperator) -> None:
    operator.observations["chat"] = operator.observations["chat"][:10]
    body = await problem(api, "POST", PATH, 409, json={})
    assert body["detail"] == (
        f"There is too little traffic to answer from: 10 finished requests are known; {MIN_REQUESTS} are needed."
    )


async def test_the_shell_prints_both_side_by_side(api: TestClient) -> None:
    arguments = ["ctl", "--url", str(api.make_url("")), "what-if", "max_batch_size=1", "e2e_ms=300", "--law", "fixed"]
    done = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("400 requests of ")
    assert "NOW" in done.stdout.splitlines()[1]


def test_requests_of_clients_that_left_are_not_played() -> None:
    recent = batches(80, 60.0, 32)
    gone = Observation("chat", 1.0, 2.0, Result.CANCELLED, 0)
    settings = Settings({}, 8, 0.0, {}, "fixed", {})
    question = frame([*recent, gone], "merge", {}, 1, settings, settings)
    assert len(question.requests) == 80
    with pytest.raises(TooLittle):
        frame([gone] * 100, "merge", {}, 1, settings, settings)
