"""How many connections there may be, for how long, and who has to go when there are too many."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from proxy.http import doorstep
from proxy.http.server import ServerLimits
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient, request_bytes

PATH = "/v1/chat/completions"


async def test_a_newcomer_takes_the_place_of_whoever_has_been_idle_for_longest() -> None:
    limits = ServerLimits(max_connections=3)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack, AsyncExitStack() as clients:
        kept = [await clients.enter_async_context(RawClient(stack.port)) for _ in range(3)]
        for client in (kept[1], kept[0], kept[2]):
            assert (await client.ask("GET", "/x")).status == 200
        async with RawClient(stack.port) as newcomer:
            assert (await newcomer.ask("GET", "/healthz")).status == 200
            assert await kept[1].closed() == b"", "it was idle for longest"
            for client in (kept[0], kept[2]):
                assert (await client.ask("GET", "/x")).status == 200
        assert stack.server.doorstep.evicted == 1


@pytest.mark.parametrize("words", [b"", b"GET /x HTTP/1.1\r\nHos"])
async def test_those_who_say_nothing_or_not_enough_make_room_too(words: bytes) -> None:
    limits = ServerLimits(max_connections=20)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack, AsyncExitStack() as clients:
        for _ in range(20):
            (await clients.enter_async_context(RawClient(stack.port))).send(words)
        async with RawClient(stack.port) as newcomer:
            assert (await newcomer.ask("POST", PATH, body=CHAT)).status == 200
        await stack.settled()


async def test_only_where_everybody_is_busy_a_newcomer_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    limits = ServerLimits(max_connections=2)
    async with MockUpstream(Behaviour(gate="go")) as up, Stack(up.url, server_limits=limits) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as two:
            for client in (one, two):
                client.send(request_bytes("POST", PATH, body=CHAT))
            await up.until(lambda: up.inflight == 2)
            for _ in range(2):
                async with RawClient(stack.port) as three:
                    answer = await three.answer()
                    assert (answer.status, answer.header("retry-after")) == (503, "1")
                    assert json.loads(answer.body)["error"]["code"] == "connections_exhausted"
            up.open("go")
            for client in (one, two):
                assert (await client.answer()).status == 200
            async with RawClient(stack.port) as four:
                assert (await four.ask("GET", "/healthz")).status == 200
        assert stack.server.doorstep.refused == 2
        said = [record for record in caplog.records if "in use" in record.message]
        assert len(said) == 1, "said once, however many are refused"


@pytest.mark.parametrize("keep", [0.02, 30.0])
async def test_an_idle_connection_rests_and_wakes_as_often_as_it_likes(
    keep: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorstep, "_REST_S", keep)
    monkeypatch.setattr(doorstep, "_SWEEP_S", 0.02)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for count in range(4):
            for body in (CHAT, {**CHAT, "user": "x" * count}):
                assert (await client.ask("POST", PATH, body=body)).status == 200
            if keep < 1.0:
                while not stack.server.doorstep.idle:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.005)
                assert not stack.server._server._connections
        assert len(up.seen) == 8
        await stack.settled()


async def test_a_message_that_has_begun_keeps_its_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorstep, "_REST_S", 0.0)
    monkeypatch.setattr(doorstep, "_SWEEP_S", 0.01)
    message = request_bytes("POST", PATH, body={**CHAT, "model": "another"})
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for cut in (1, 20, message.find(b"\r\n\r\n") + 2, message.find(b"\r\n\r\n") + 9, len(message) - 1):
            assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            client.send(message[:cut])
            await asyncio.sleep(0.05)
            client.send(message[cut:])
            assert (await client.answer()).status == 200
        assert len(up.seen) == 10


async def test_connections_that_rest_are_closed_when_their_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorstep, "_REST_S", 0.0)
    monkeypatch.setattr(doorstep, "_SWEEP_S", 0.01)
    limits = ServerLimits(keepalive_timeout_s=0.1)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/x")).status == 200
        assert await client.closed() == b""
        assert stack.server.doorstep.open == 0


async def test_the_head_of_a_first_request_has_a_time_of_its_own() -> None:
    limits = ServerLimits(keepalive_timeout_s=60.0, head_timeout_s=0.1)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack:
        async with RawClient(stack.port) as slow, RawClient(stack.port) as silent:
            head = b"GET /x HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1_000

            async def dribble() -> None:
                for at in range(len(head)):
                    slow.send(head[at : at + 1])
                    await asyncio.sleep(0.005)

            dribbling = asyncio.ensure_future(dribble())
            assert await slow.closed() == b""
            dribbling.cancel()
            assert (await silent.ask("GET", "/x")).status == 200, "who says nothing at all has longer"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_takes_nothing_of_its_answer_gives_up_its_place(stream: bool) -> None:
    limits = ServerLimits(answer_timeout_s=0.2, min_rate_bytes=100_000_000)
    how = Behaviour(tokens=4_000, width=10_000) if stream else Behaviour(body_size=60_000_000)
    async with MockUpstream(how) as up, Stack(up.url, server_limits=limits) as stack:
        async with RawClient(stack.port) as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(request_bytes("POST", PATH, body={**CHAT, "stream": stream}))
            await up.until(lambda: up.seen, timeout=60.0)  # stays true, however soon the answer is given up
            await stack.settled(timeout=60.0)
            assert stack.counts.finished[-1][2] == 499
        async with asyncio.timeout(60.0):
            while stack.server.doorstep.open:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)
