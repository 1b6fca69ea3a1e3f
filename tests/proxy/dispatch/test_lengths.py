"""Who has a predictor, what its predictions may decide, and what it learns from."""

from __future__ import annotations

from typing import Any

import pytest

from controller.observation import Observation, Result
from policies.sizes import DEFAULT_OUTPUT_TOKENS
from proxy.config.model import Config
from proxy.config.pool import PoolConfig
from proxy.dispatch.lengths import Lengths, lengths_for, mode_of
from proxy.request import Ticket
from proxy.wire.base import Call, Route
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

CHAT = Route("chat.completions")


def pool(**data: Any) -> PoolConfig:
    return Config.model_validate({"upstreams": ["http://a:1"], **data}).pools[0]


def ticket_of(text: str, items: int = 1, max_tokens: int | None = None) -> Ticket:
    ticket = Ticket("id", 0.0)
    ticket.call = Call(CHAT, b"", "m", items=items, text=text, prompt_tokens=3, max_tokens=max_tokens)
    return ticket


def serve(
    lengths: Lengths,
    text: str,
    tokens: int,
    *,
    finish: str | None = "stop",
    result: Result = Result.OK,
    items: int = 1,
) -> None:
    ticket = ticket_of(text, items)
    assert ticket.call is not None
    lengths.foresee(ticket, ticket.call)
    ticket.finish_reason = finish
    lengths.finished(ticket, Observation("p", 0.0, 1.0, result, 0, output_tokens=tokens))


def experienced(**data: Any) -> Lengths:
    """Return one that has seen two prompts often enough, one long, one short."""
    lengths = Lengths(
        pool(predictor={"mode": "history", "min_samples": 20, **data.pop("predictor", {})}, **data), float
    )
    for _ in range(60):
        serve(lengths, "long", 400)
        serve(lengths, "short", 4)
    return lengths


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        ({}, "off"),
        ({"policy": "fcfs"}, "off"),
        ({"policy": "sjf"}, "history"),
        ({"policy": "predicted"}, "history"),
        ({"policy": "fair"}, "history"),
        ({"policy": "sjf", "predictor": {"mode": "off"}}, "off"),
        ({"predictor": {"mode": "learn"}}, "learn"),
    ],
)
def test_auto_predicts_where_the_policy_asks_for_lengths(data: dict[str, Any], mode: str) -> None:
    assert mode_of(pool(**data)) == mode
    assert (lengths_for(pool(**data), float) is None) is (mode == "off")


def test_nothing_is_decided_by_a_predictor_that_knows_nothing() -> None:
    lengths = Lengths(pool(policy="sjf"), float)
    ticket = ticket_of("x")
    assert ticket.call is not None
    assert lengths.foresee(ticket, ticket.call) == (None, None, DEFAULT_OUTPUT_TOKENS, None)
    bound = ticket_of("x", max_tokens=9)
    assert bound.call is not None
    assert lengths.foresee(bound, bound.call).work == 9


def test_what_has_proven_itself_decides_about_order_admission_and_work() -> None:
    lengths = experienced()
    ticket = ticket_of("long", items=3)
    assert ticket.call is not None
    p50, p90, work, hint = lengths.foresee(ticket, ticket.call)
    assert p50 == pytest.approx(400, rel=0.1)
    assert p90 is not None
    assert p90 >= p50
    assert work == pytest.approx(3 * p50), "three sequences are three times the work"
    assert hint is None, "this kind of upstream would not read it"


def test_uses_that_are_switched_off_are_not_made() -> None:
    for uses, wanted in ((["order"], (True, False, False)), (["admit"], (False, True, False)),
                         (["route"], (False, False, True))):  # fmt: skip
        lengths = experienced(predictor={"uses": uses})
        ticket = ticket_of("short")
        assert ticket.call is not None
        p50, p90, work, _ = lengths.foresee(ticket, ticket.call)
        assert (p50 is not None, p90 is not None, work < 50) == wanted
        assert lengths.report()["order_by"] == ("history" if "order" in uses else "off")


def test_upstreams_of_a_kind_that_takes_hints_get_them() -> None:
    lengths = experienced(upstreams=[{"url": "http://a:1", "profile": "trimtab-worker"}])
    assert lengths.uses == ("order", "admit", "route", "hint")
    ticket = ticket_of("short")
    assert ticket.call is not None
    assert lengths.foresee(ticket, ticket.call).hint == 4


@pytest.mark.parametrize(
    ("tokens", "finish", "result"),
    [(0, None, Result.OK), (50, "stop", Result.FAILED), (50, None, Result.CANCELLED), (0, None, Result.REFUSED)],
)
def test_what_says_nothing_about_length_teaches_nothing(tokens: int, finish: str | None, result: Result) -> None:
    lengths = Lengths(pool(policy="sjf"), float)
    for _ in range(30):
        serve(lengths, "x", tokens, finish=finish, result=result)
    report = lengths.report()
    assert (report["all"]["n"], report["history_keys"]) == (0, 0)


def test_lengths_are_those_of_one_sequence() -> None:
    lengths = Lengths(pool(policy="sjf", predictor={"min_samples": 20}), float)
    for _ in range(60):
        serve(lengths, "four at once", 400, items=4)
    ticket = ticket_of("four at once")
    assert ticket.call is not None
    assert lengths.foresee(ticket, ticket.call).p50 == pytest.approx(100, rel=0.05)


async def hint_seen(profile: str, own: str | None = None) -> str | None:
    """Return the hint that an upstream of a kind gets, from callers that give `own`."""
    headers = {} if own is None else {"x-trimtab-predicted-tokens": own}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    message = request_bytes("POST", "/v1/chat/completions", headers, body)
    async with MockUpstream(Behaviour(tokens=40)) as upstream:
        async with (
            Stack(
                upstreams=[{"url": upstream.url, "profile": profile}], policy="sjf", predictor={"min_samples": 20}
            ) as stack,
            RawClient(stack.port) as client,
        ):
            for _ in range(25):
                client.send(message)
                assert (await client.answer()).status == 200
        return upstream.seen[-1].header("x-trimtab-predicted-tokens")


async def test_the_hint_goes_to_our_worker_and_to_nobody_else() -> None:
    assert await hint_seen("trimtab-worker") == "40"
    assert await hint_seen("vllm") is None


async def test_a_callers_own_hint_goes_no_further() -> None:
    assert await hint_seen("trimtab-worker", "7") == "40"
    assert await hint_seen("vllm", "7") is None
