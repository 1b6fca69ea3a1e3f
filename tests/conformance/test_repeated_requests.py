"""A connection's repeated requests are served from callbacks, past the parser; nobody must be able to tell."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from controller.observation import Result
from proxy.http import protocol
from proxy.http.server import ServerLimits
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def warmed(client: RawClient, times: int = 2) -> None:
    """Let the connection's head become one that is known."""
    for _ in range(times):
        assert (await client.ask("POST", PATH, body=CHAT)).status == 200


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "stream": True}], ids=["whole", "stream"])
async def test_answers_are_the_same_every_time(body: dict[str, Any]) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answers = [await client.ask("POST", PATH, body=body) for _ in range(5)]
        assert {answer.body for answer in answers} == {answers[0].body}
        assert all(answer.complete for answer in answers)
        await stack.settled()
        assert [obs.result for obs, _, _ in stack.counts.finished] == [Result.OK] * 5
        assert len({obs.output_tokens for obs, _, _ in stack.counts.finished}) == 1


async def test_what_is_pipelined_behind_one_is_answered_after_it() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        up.default = Behaviour(gate="first")
        client.send(request_bytes("POST", PATH, body=CHAT))
        await up.until(lambda: len(up.seen) == 3)
        client.send(request_bytes("POST", PATH, body=CHAT) + request_bytes("GET", "/-/trimtab/readyz"))
        up.open("first")
        first, second, third = [await client.answer() for _ in range(3)]
        assert (first.status, second.status) == (200, 200)
        assert third.body == b"ok\n"
        await stack.settled()


async def test_a_client_that_leaves_is_noticed_and_costs_nothing() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        up.default = Behaviour(hang=True)
        client.send(request_bytes("POST", PATH, body=CHAT))
        await up.until(lambda: len(up.seen) == 3 and bool(up.seen[-1].body))
        client.abort()
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.CANCELLED


async def test_the_idle_timer_closes_no_connection_that_waits_for_its_answer() -> None:
    limits = ServerLimits(keepalive_timeout_s=0.05)
    async with (
        MockUpstream() as up,
        Stack(up.url, server_limits=limits) as stack,
        RawClient(stack.port) as client,
    ):
        await warmed(client)
        up.default = Behaviour(delay=0.2)
        answer = await client.ask("POST", PATH, body=CHAT)
        assert (answer.status, answer.complete) == (200, True)
        await client.closed()


async def test_a_refusal_leaves_the_connection_as_it_was() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        assert (await client.ask("POST", PATH, body=b"{")).status == 400
        await warmed(client, 1)
        await stack.settled()


async def test_an_upstream_that_breaks_is_told_and_the_next_request_served() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        up.default = Behaviour(status=500)
        assert (await client.ask("POST", PATH, body=CHAT)).status == 500
        up.default = Behaviour()
        await warmed(client, 1)
        await stack.settled()


async def test_several_waiting_for_one_slot_all_get_their_answer() -> None:
    async with MockUpstream() as up, Stack(up.url, setpoints={"window_ms": 0, "max_batch_size": 1}) as stack:
        async with AsyncExitStack() as connected:
            clients = [await connected.enter_async_context(RawClient(stack.port)) for _ in range(4)]
            for client in clients:
                await warmed(client)
            up.default = Behaviour(delay=0.01)
            answers = await asyncio.gather(*(client.ask("POST", PATH, body=CHAT) for client in clients))
            assert [answer.status for answer in answers] == [200] * 4
            assert up.max_inflight == 1
        await stack.settled()


@pytest.mark.parametrize("cut", [1, 20, -1, -5], ids=["early", "in the head", "a byte short", "in the body"])
async def test_a_request_in_pieces_is_the_same_request(cut: int) -> None:
    whole = request_bytes("POST", PATH, body=CHAT)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        for _ in range(3):
            client.send(whole[:cut])
            await asyncio.sleep(0)
            client.send(whole[cut:])
            assert (await client.answer()).status == 200
        assert {bytes(seen.body) for seen in up.seen} == {up.seen[0].body}
        await stack.settled()
        assert [obs.result for obs, _, _ in stack.counts.finished] == [Result.OK] * 5


async def test_a_body_that_follows_its_head_late_is_waited_for() -> None:
    head, _, body = request_bytes("POST", PATH, body=CHAT).partition(b"\r\n\r\n")
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        client.send(head + b"\r\n\r\n" + body[:3])
        # Longer than a known head is held for: aiohttp has it now, and waits as long as bodies may take.
        await asyncio.sleep(0.1)
        client.send(body[3:])
        assert (await client.answer()).status == 200
        assert up.seen[-1].body == up.seen[0].body
        await warmed(client)
        await stack.settled()


async def test_a_body_longer_than_is_held_arrives_whole() -> None:
    long = {**CHAT, "user": "x" * 300_000}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        assert (await client.ask("POST", PATH, body=long)).status == 200
        assert len(up.seen[-1].body) > 300_000
        await warmed(client)
        await stack.settled()


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    whole = request_bytes("POST", PATH, body=CHAT)
    async with MockUpstream() as up, Stack(up.url) as stack:
        async with RawClient(stack.port) as client:
            await warmed(client)
            client.send(whole[:-5])
            client.abort()
        await stack.settled()
        assert len(up.seen) == 2


async def test_what_follows_a_body_that_came_in_pieces_is_the_next_request() -> None:
    whole = request_bytes("POST", PATH, body=CHAT)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await warmed(client)
        client.send(whole[:-5])
        await asyncio.sleep(0.001)
        client.send(whole[-5:] + request_bytes("GET", "/-/trimtab/readyz"))
        assert (await client.answer()).status == 200
        assert (await client.answer()).body == b"ok\n"
        assert up.seen[-1].body == up.seen[0].body
        await stack.settled()


async def test_a_connection_that_rests_is_closed_when_nothing_comes() -> None:
    limits = ServerLimits(keepalive_timeout_s=0.2)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", PATH, body=CHAT)).status == 200
        assert await client.closed() == b""


async def test_a_fault_of_our_own_before_a_request_is_known_is_answered_and_not_waited_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async with MockUpstream() as up, Stack(up.url) as stack:
        async with RawClient(stack.port) as client:
            monkeypatch.setattr(protocol, "Opening", broken)
            answer = await client.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("x-trimtab-reason")) == (500, "internal_error")
            assert await client.closed() == b""
        monkeypatch.undo()
        async with RawClient(stack.port) as client:
            await warmed(client)
        await stack.settled()
    assert "a bug" in caplog.text
