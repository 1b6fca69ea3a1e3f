"""Connect, first byte, pause and total have limits of their own, and so has the caller."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import socket
from math import inf

from controller.observation import Result
from tests.support.literal_upstream import LiteralUpstream
from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient

STREAM = {**CHAT, "stream": True}
NO_WAIT = {"queue": {"upstream_wait_ms": 0}}
NO_RETRY = {"retries": {"max": 0}}


async def test_first_byte_timeout_is_504() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"first_byte_ms": 50}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"hang": True})
        assert (answer.status, answer.header("x-trimtab-reason")) == (504, "upstream_timeout")
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.TIMEOUT


async def test_a_pause_between_pieces_breaks_the_stream() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"between_chunks_ms": 50}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"stall_at": 500, "tokens": 9})
        assert answer.status == 200
        assert not answer.complete
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.TIMEOUT


async def test_a_steady_stream_may_take_longer_than_any_pause() -> None:
    config = {"timeouts": {"between_chunks_ms": 60, "first_byte_ms": 60}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 12, "gap": 0.02})
        assert answer.complete
        assert answer.body == b"".join(chat_stream(12))


async def test_the_total_timeout_ends_a_steady_stream() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, timeouts={"total_ms": 120}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 500, "gap": 0.01})
        assert not answer.complete
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()


async def test_the_callers_own_timeout_covers_queue_and_service() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"X-Trimtab-Timeout-Ms": "60"}, body=CHAT, mock={"hang": True}
        )
        assert (answer.status, answer.header("x-trimtab-reason")) == (504, "upstream_timeout")
        await stack.settled()


async def test_connect_timeout_is_504_and_names_itself() -> None:
    # A listener whose backlog is full never completes a handshake.
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    port = listener.getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}", timeouts={"connect_ms": 80}, **NO_WAIT, **NO_RETRY) as stack:
        async with RawClient(stack.port) as client:
            answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
            assert answer.status == 504
            assert "connect_timeout" in answer.json["error"]["message"]
            await stack.settled()
    for sock in (*fillers, listener):
        sock.close()


async def test_a_stream_whose_head_came_early_still_waits_for_its_first_byte() -> None:
    """A head that stands before the first token is none: name and length of the wait are the first byte's."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        LiteralUpstream({"/v1/chat/completions": [head]}) as up,
        Stack(up.url, timeouts={"first_byte_ms": 900, "between_chunks_ms": 50}) as stack,
        RawClient(stack.port) as client,
    ):
        answer = await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True})
        assert answer.status == 200, "the head went on when no first event had come for a while"
        assert not answer.complete
        assert b"first_byte_timeout" in answer.body


async def test_by_default_nothing_ends_a_stream_that_flows() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert stack.pool.terms.total_s == inf
        mock = {"tokens": 3, "gap": 0.01}
        assert (await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock=mock)).complete
