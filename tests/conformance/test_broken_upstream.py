"""No fabricated success: an answer that breaks never looks complete, and what is no HTTP is none."""

from __future__ import annotations

import asyncio
import json

import pytest

from controller.observation import Result
from tests.support.mock_upstream import Behaviour, MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient

STREAM = {**CHAT, "stream": True}
NO_RETRY = {"retries": {"max": 0}}


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
@pytest.mark.parametrize("reset", [False, True])
async def test_a_stream_cut_at_any_byte_never_looks_complete(framing: str, reset: bool) -> None:
    whole = b"".join(chat_stream(2))
    size = len(whole) + (40 if framing == "chunked" else 0)
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY, health={"eject_after": 1000}) as stack:
        for cut in range(0, size, 7):
            mock = {"tokens": 2, "cut_at": cut, "reset": reset, "framing": framing}
            async with RawClient(stack.port) as client:
                answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock=mock)
            if framing == "close" and not reset and cut == 0:
                continue  # an empty body that closing ends is complete, as far as HTTP can tell
            if b"data: [DONE]\n\n" in answer.body and answer.complete:
                assert answer.body == whole, "the end mark is the upstream's own"
                continue
            if answer.status == 200:
                if framing == "close" and not reset and b'"delta"' not in answer.body:
                    continue  # cut inside the first event: a short text, for all that anybody can tell
                assert not answer.complete, (cut, answer)
            else:
                assert answer.status == 502, (cut, answer)
            assert b"[DONE]" not in answer.body or whole.startswith(answer.body)
        await stack.settled()


@pytest.mark.parametrize("reset", [False, True])
async def test_a_whole_answer_cut_at_any_byte_becomes_502(reset: bool) -> None:
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY, health={"eject_after": 1000}) as stack:
        for cut in range(0, 240, 11):
            async with RawClient(stack.port) as client:
                answer = await client.ask(
                    "POST", "/v1/chat/completions", body=CHAT, mock={"cut_at": cut, "reset": reset}
                )
            assert answer.status == 502, cut
            assert answer.header("x-trimtab-reason") == "upstream_error"
            assert answer.json["error"]["code"] == "upstream_error"
        await stack.settled()
        assert {obs.result for obs, _, _ in stack.counts.finished} == {Result.FAILED}


async def test_a_broken_stream_ends_with_the_protocols_error_event_and_an_aborted_connection() -> None:
    events = chat_stream(6)
    cut = sum(len(b"%x\r\n%b\r\n" % (len(e), e)) for e in events[:3])
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": cut, "gap": 0.002}
        )
        assert not answer.complete
        assert answer.body.startswith(b"".join(events[:3]))
        rest = answer.body.removeprefix(b"".join(events[:3]))
        assert rest.startswith(b"data: ")
        assert json.loads(rest.removeprefix(b"data: "))["error"]["code"] == "upstream_error"
        assert b"[DONE]" not in answer.body
        await stack.settled()
        assert stack.counts.finished[-1][0].result is Result.FAILED


async def test_an_error_event_is_never_put_inside_a_half_sent_event() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": 300, "gap": 0.002}
        )
        assert not answer.complete
        assert b"".join(chat_stream(6)).startswith(answer.body)


async def test_an_error_event_is_never_put_into_a_compressed_stream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        events = chat_stream(6)
        cut = sum(len(b"%x\r\n%b\r\n" % (len(e), e)) for e in events[:3])
        mock = {"tokens": 6, "cut_at": cut, "gap": 0.002, "encoding": "gzip"}
        answer = await client.ask("POST", "/v1/chat/completions", body=STREAM, mock=mock)
        assert not answer.complete
        assert answer.body == b"".join(events[:3])


async def test_http_1_0_readers_of_a_broken_stream_see_a_reset() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        body = json.dumps(STREAM).encode()
        client.send(
            b"POST /v1/chat/completions HTTP/1.0\r\nHost: a\r\nContent-Type: application/json\r\n"
            b'X-Mock: {"tokens":9,"cut_at":700,"gap":0.002}\r\nContent-Length: %d\r\n\r\n%b' % (len(body), body)
        )
        await client.head()
        with pytest.raises(ConnectionError):
            await asyncio.wait_for(client.reader.read(-1), 5)


async def test_no_retry_and_no_second_status_after_the_first_byte() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body=STREAM, mock={"tokens": 6, "cut_at": 500, "gap": 0.002}
        )
        assert answer.status == 200
        assert len(up.seen) == 1
        await stack.settled()


@pytest.mark.parametrize(
    "mock",
    [
        {"garbage": True},
        {"body": "x", "headers": [["Content-Length", "1"], ["Content-Length", "2"]]},
        {"framing": "chunked", "headers": [["Content-Length", "5"]]},
        {"headers": [["X Bad", "1"]]},
        {"headers": [["X-Long", "v" * 300_000]]},
    ],
)
async def test_answers_that_are_no_proper_http_become_502(mock: dict[str, object]) -> None:
    async with MockUpstream() as up, Stack(up.url, **NO_RETRY) as stack, RawClient(stack.port) as client:
        up.default = Behaviour(**mock)  # type: ignore[arg-type]
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
        assert answer.status == 502
        assert answer.header("x-trimtab-reason") == "upstream_error"
        await stack.settled()


async def test_bytes_after_an_answer_never_reach_the_next_request() -> None:
    """A server that writes more than it announced must not be able to answer the next caller."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while (await reader.read(65536)) != b"":
            served += 1
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
            )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with (
        Stack(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as stack,
        RawClient(stack.port) as client,
    ):
        for _ in range(3):
            answer = await client.ask("GET", "/x")
            assert answer.body != b"evil"
    server.close()
