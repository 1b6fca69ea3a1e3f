"""Retries only where they do no harm, and within their budget."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio

import pytest

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient, request_bytes

WIDE = {"on": ["connect", "overload", "refusal", "failure", "broken"]}
"""Also chats that were read, perhaps."""
VECTOR = {"model": "m", "input": "x"}
DEATHS: list[dict[str, object]] = [{"reset_before_head": True}, {"close_before_head": True}, {"cut_at": 10}]


@pytest.mark.parametrize("fault", [{"reset_before_head": True}, {"close_before_head": True}, {"cut_at": 10}])
async def test_another_upstream_is_tried_while_nothing_has_been_sent(fault: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**fault)) as bad, MockUpstream() as good:  # type: ignore[arg-type]
        async with Stack(bad.url, good.url, retries=WIDE) as stack, RawClient(stack.port) as client:
            for _ in range(4):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(good.seen) == 4
            assert stack.counts.retries == len(bad.seen) > 0
            await stack.settled()


async def test_a_dead_upstream_is_skipped() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with MockUpstream() as good, Stack(dead, good.url) as stack, RawClient(stack.port) as client:
        for _ in range(10):
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
        await stack.settled()


async def test_nobody_there_is_502_at_once_where_nobody_is_to_be_waited_for() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with Stack(dead, queue={"upstream_wait_ms": 0}) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
        assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_error")
        await stack.settled()


async def test_the_retry_budget_holds_when_everything_fails() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as up:
        config = {
            "retries": {"max": 3, "budget_ratio": 0.2, "budget_min_per_s": 0.0},
            "health": {"eject_after": 1000},
        }
        async with Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            for _ in range(50):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 502
            assert len(up.seen) <= 50 * 1.2 + 1
            await stack.settled()


async def test_a_body_that_is_not_held_is_never_sent_twice() -> None:
    async with (
        MockUpstream(Behaviour(reset_before_head=True)) as bad,
        MockUpstream(Behaviour(reset_before_head=True)) as worse,
    ):
        async with Stack(bad.url, worse.url) as stack, RawClient(stack.port) as client:
            client.send(request_bytes("POST", "/up", {"Transfer-Encoding": "chunked"}))
            await asyncio.sleep(0.01)
            client.send(b"5\r\nhello\r\n0\r\n\r\n")
            assert (await client.answer()).status == 502
            assert len(bad.seen) + len(worse.seen) == 1


async def test_a_post_of_unknown_meaning_is_not_repeated() -> None:
    async with (
        MockUpstream(Behaviour(reset_before_head=True)) as bad,
        MockUpstream(Behaviour(reset_before_head=True)) as worse,
    ):
        async with Stack(bad.url, worse.url) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", "/transfer-money", body=b"1")).status == 502
            assert len(bad.seen) + len(worse.seen) == 1
            await stack.settled()


@pytest.mark.parametrize("fault", DEATHS)
async def test_a_chat_that_was_read_is_not_given_to_the_next(fault: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**fault)) as one, MockUpstream(Behaviour(**fault)) as two:  # type: ignore[arg-type]
        async with Stack(one.url, two.url, retries={"max": 2}) as stack, RawClient(stack.port) as client:
            for sent in range(1, 4):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 502
                assert len(one.seen) + len(two.seen) == sent
            await stack.settled()


@pytest.mark.parametrize("fault", DEATHS)
async def test_what_is_a_function_of_the_request_is_given_to_the_next(fault: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**fault)) as bad, MockUpstream() as good:  # type: ignore[arg-type]
        async with Stack(bad.url, good.url) as stack, RawClient(stack.port) as client:
            for _ in range(4):
                assert (await client.ask("POST", "/v1/embeddings", body=VECTOR)).status == 200
            assert len(good.seen) == 4
            await stack.settled()


@pytest.mark.parametrize("retries", [{"max": 5}, {"max": 5, **WIDE}])
async def test_never_a_third_server_after_two_deaths_of_one_request(retries: dict[str, object]) -> None:
    dying = Behaviour(close_before_head=True)
    async with MockUpstream(dying) as one, MockUpstream(dying) as two, MockUpstream(dying) as three:
        ups = (one, two, three)
        async with Stack(*[up.url for up in ups], retries=retries) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", "/v1/embeddings", body=VECTOR)).status == 502
            assert sorted(len(up.seen) for up in ups) == [0, 1, 1]
            await stack.settled()


@pytest.mark.parametrize("store", [{}, {"store": True}])
@pytest.mark.parametrize("fault", [*DEATHS, {"status": 500}])
async def test_a_response_that_is_stored_is_never_sent_twice(
    store: dict[str, bool], fault: dict[str, object]
) -> None:
    async with MockUpstream(Behaviour(**fault)) as one, MockUpstream(Behaviour(**fault)) as two:  # type: ignore[arg-type]
        async with Stack(one.url, two.url, retries={"max": 2, **WIDE}) as stack, RawClient(stack.port) as client:
            body = {"model": "m", "input": "x", **store}
            assert (await client.ask("POST", "/v1/responses", body=body)).status in (500, 502)
            assert len(one.seen) + len(two.seen) == 1
            await stack.settled()


async def test_an_upload_that_reached_nobody_goes_to_the_next() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with MockUpstream() as good, Stack(dead, good.url) as stack, RawClient(stack.port) as client:
        for _ in range(4):
            client.send(request_bytes("POST", "/up", {"Transfer-Encoding": "chunked"}) + b"5\r\nhello\r\n0\r\n\r\n")
            assert (await client.answer()).status == 200
        assert [seen.body for seen in good.seen] == [b"hello"] * 4
        await stack.settled()


async def test_an_answer_of_500_is_asked_for_elsewhere_once() -> None:
    failing = Behaviour(status=500)
    async with MockUpstream(failing) as one, MockUpstream(failing) as two, MockUpstream(failing) as three:
        ups = (one, two, three)
        async with Stack(*[up.url for up in ups]) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
            assert (answer.status, answer.json["error"]["message"]) == (500, "mock says 500")
            assert sorted(len(up.seen) for up in ups) == [0, 1, 1]
            await stack.settled()
