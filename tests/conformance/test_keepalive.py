"""Comments while a stream waits: only between events, and never in the way of an error."""

from __future__ import annotations

import asyncio
import json

from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
STREAM = {"model": "m", "messages": [], "stream": True}
ON = {"keepalive": {"enabled": True, "interval_ms": 100}}
COMMENT = b": keep-alive\n\n"


async def test_off_unless_asked_for() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=STREAM, mock={"delay": 0.3})
        assert answer.body == b"".join(chat_stream(4))


async def test_comments_while_queued_and_before_the_first_byte() -> None:
    config = {"setpoints": {"max_batch_size": 1, "window_ms": 0}, **ON}
    async with MockUpstream() as up, Stack(up.url, **config) as stack:
        async with RawClient(stack.port) as first, RawClient(stack.port) as second:
            first.send(request_bytes("POST", PATH, body={**STREAM, "stream": False}, mock={"gate": "go"}))
            await up.until(lambda: len(up.seen) == 1)
            second.send(request_bytes("POST", PATH, body=STREAM))
            status, _, headers = await second.head()
            assert status == 200
            assert dict(headers)["Content-Type"].startswith("text/event-stream")
            assert await second.piece() == COMMENT
            assert await second.piece() == COMMENT
            assert len(up.seen) == 1, "it is still queued"
            up.open("go")
            body = b""
            while piece := await second.piece():
                body += piece
            assert body.replace(COMMENT, b"") == b"".join(chat_stream(4))
            assert (await first.answer()).status == 200
        await stack.settled()


async def test_comments_in_a_silence_between_events() -> None:
    async with MockUpstream() as up, Stack(up.url, **ON) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=STREAM, mock={"tokens": 3, "gap": 0.25})
        assert answer.complete
        assert COMMENT in answer.body
        assert answer.body.replace(COMMENT, b"") == b"".join(chat_stream(3))


async def test_never_inside_an_event() -> None:
    config = {**ON, "timeouts": {"between_chunks_ms": 350}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=STREAM, mock={"tokens": 3, "stall_at": 200})
        assert not answer.complete
        assert b"".join(chat_stream(3)).startswith(answer.body)


async def test_an_error_after_the_head_is_told_inside_and_breaks_the_stream_off() -> None:
    for mock in ({"status": 500, "delay": 0.15}, {"reset_before_head": True, "delay": 0.15}):
        async with MockUpstream() as up, Stack(up.url, retries={"max": 0}, **ON) as stack:
            async with RawClient(stack.port) as client:
                answer = await client.ask("POST", PATH, body=STREAM, mock=mock)
            assert answer.status == 200
            assert not answer.complete
            assert answer.body.startswith(COMMENT)
            error = json.loads(answer.body.removeprefix(COMMENT).removeprefix(b"data: "))
            assert error["error"]["code"] == "upstream_error"
            assert b"[DONE]" not in answer.body
            await stack.settled()


async def test_nothing_is_put_into_what_is_no_stream_of_events_or_compressed() -> None:
    async with MockUpstream() as up, Stack(up.url, **ON) as stack, RawClient(stack.port) as client:
        mock = {"framing": "chunked", "body_size": 400_000, "stall_at": 300_000}
        client.send(request_bytes("POST", PATH, {"Accept-Encoding": "gzip"}, body=STREAM, mock=mock))
        await client.head()
        await asyncio.sleep(0.25)
        client.writer.write_eof()
        assert COMMENT not in await client.closed()
        assert up.seen[0].header("accept-encoding") is None
        mock = {"encoding": "gzip", "tokens": 3, "gap": 0.2}
        async with RawClient(stack.port) as other:
            answer = await other.ask("POST", PATH, body=STREAM, mock=mock)
        assert answer.body == b"".join(chat_stream(3))
        await stack.settled()


async def test_an_error_before_the_first_comment_keeps_its_status() -> None:
    async with MockUpstream() as up, Stack(up.url, **ON) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=STREAM, mock={"status": 404})
        assert answer.status == 404


async def test_a_client_that_leaves_stops_the_comments() -> None:
    async with MockUpstream() as up, Stack(up.url, **ON) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, body=STREAM, mock={"hang": True}))
        await client.head()
        await client.piece()
        client.abort()
        await up.until(lambda: up.seen[0].aborted_at is not None)
        await stack.settled()
        await asyncio.sleep(0.15)
