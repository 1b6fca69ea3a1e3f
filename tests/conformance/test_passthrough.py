"""Byte-exact in both directions: targets, bodies, streams, statuses, compressed or not."""

from __future__ import annotations

import asyncio
import hashlib
import random
import zlib

import pytest

from tests.support.literal_upstream import LiteralUpstream
from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient, request_bytes


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/anything/else"])
async def test_random_bodies_pass_unchanged_both_ways(path: str) -> None:
    rng = random.Random(7)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for size in (0, 1, 17, 4096, 65_535, 65_536, 300_000, 3_000_000):
            body = rng.randbytes(size) if path == "/anything/else" else _json_of(rng, size)
            answer = await client.ask("POST", path, body=body, mock={"echo": True})
            assert answer.status == 200
            assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest(), size
            assert up.seen[-1].body == body
        await stack.settled()


def _json_of(rng: random.Random, size: int) -> bytes:
    filling = "".join(rng.choice("aé漢🙂 ") for _ in range(max(0, size // 3)))
    return (f'{{ "model":"m" ,"messages":[{{"content":"{filling}"}}], "unknown" : 1e2}}').encode()


async def test_unknown_fields_spelling_and_key_order_survive() -> None:
    body = b'{"zz": 1,\n "model" : "m", "messages":[], "x_unknown": {"b":1, "a":2.50}, "top_p":1.0}'
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("POST", "/v1/chat/completions", body=body)
        assert up.seen[-1].body == body


@pytest.mark.parametrize("gap", [0.0, 0.003])
async def test_a_stream_passes_unchanged_whatever_its_pieces(gap: float) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock={"tokens": 12, "gap": gap}
        )
        assert answer.complete
        assert answer.body == b"".join(chat_stream(12))
        assert answer.header("content-length") is None
        assert answer.header("content-type") == "text/event-stream; charset=utf-8"
        await stack.settled()
        obs = stack.counts.finished[-1][0]
        assert obs.streamed
        assert obs.output_tokens == 12


async def test_every_split_of_a_stream_gives_the_same_bytes_and_the_same_counts() -> None:
    """The recorded stream holds umlauts, CJK and emoji; every place a read can end at is tried."""
    wire = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in chat_stream(2, usage=True)) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    split = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(request) - request.index(b"\r\n\r\n") - 4)
                writer.write(head + wire[:split])
                await asyncio.sleep(0.0005)
                writer.write(wire[split:])
        except asyncio.IncompleteReadError:
            writer.close()

    request = request_bytes("POST", "/v1/chat/completions", body={**CHAT, "stream": True})
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
        for split in range(len(wire)):
            client.send(request)
            answer = await client.answer()
            assert answer.body == b"".join(chat_stream(2, usage=True)), split
            obs = stack.counts.finished[-1][0]
            assert (obs.prompt_tokens, obs.output_tokens) == (7, 2), split
        await stack.settled()
    server.close()


@pytest.mark.parametrize("status", [200, 201, 202, 301, 400, 404, 418, 429, 500, 501])
async def test_status_and_body_are_the_upstreams_own(status: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"status": status, "body": "{}"})
        assert (answer.status, answer.body) == (status, b"{}")


async def test_reason_phrases_and_unknown_statuses_survive() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"status": 299})
        assert (answer.status, answer.reason) == (299, "Mock")


@pytest.mark.parametrize("reason", ["", "Fine", "OK"])
async def test_a_reason_phrase_is_the_upstreams_own_even_when_it_is_empty(reason: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", body=CHAT, mock={"reason": reason, "body": "{}"})
        assert (answer.status, answer.reason) == (200, reason)


async def test_non_sse_error_to_a_streaming_request_is_relayed_verbatim() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST",
            "/v1/chat/completions",
            body={**CHAT, "stream": True},
            mock={"status": 422, "body": '{"detail":"no"}'},
        )
        assert (answer.status, answer.body) == (422, b'{"detail":"no"}')
        assert answer.header("content-type") == "application/json"


async def test_unterminated_tail_of_a_stream_is_flushed() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock={"body": "data: x"}
        )
        assert answer.body == b"data: x"


async def test_query_and_escapes_reach_the_upstream_as_written() -> None:
    target = "/a%2Fb/c%20d;p=1/..x%2f?x=%41&y=a+b&z"
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", target)
        assert up.seen[-1].target == target


async def test_a_path_in_the_base_url_is_put_before_the_requests_own() -> None:
    async with MockUpstream() as up, Stack(up.url + "/base") as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/v1/models")
        assert up.seen[-1].target == "/base/v1/models"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_compressed_answers_stay_labelled_and_undecoded(coding: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"Accept-Encoding": coding}, body=CHAT,
            mock={"body": "\x1f\x08 opaque", "encoding": coding},
        )  # fmt: skip
        assert answer.header("content-encoding") == coding
        assert answer.body == b"\x1f\x08 opaque"
        assert up.seen[-1].header("accept-encoding") == coding


async def test_compressed_requests_pass_undecoded() -> None:
    body = zlib.compress(b'{"model":"m","messages":[]}')
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/other", {"Content-Encoding": "deflate"}, body=body, mock={"echo": True})
        assert answer.body == body
        answer = await client.ask(
            "POST", "/v1/chat/completions", {"Content-Encoding": "deflate"}, body=body, mock={"echo": True}
        )
        assert (answer.status, answer.body) == (200, body)
        assert up.seen[-1].header("content-encoding") == "deflate"


LOOSE = {
    "a folded line": (b"X-A: one\r\n  two\r\n\tthree\r\nContent-Length: 5\r\n", "one two three"),
    "a blank before the colon": (b"X-A : one\r\nContent-Length\t: 5\r\n", "one"),
    "a length said twice": (b"Content-Length: 5\r\nX-A: one\r\ncontent-length: 5\r\n", "one"),
    "a list of one length": (b"X-A: one\r\nContent-Length: 5, 5\r\n", "one"),
}
"""Fields that are not as they should be, with what a proxy has to make of them (RFC 9112 section 5, RFC 9110 8.6)."""
CONTRADICTING = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 6\r\n",
    "a list of two lengths": b"Content-Length: 5, 6\r\n",
    "a folded first line": b" X: 1\r\nContent-Length: 5\r\n",
    "no name": b": 1\r\nContent-Length: 5\r\n",
    "no colon": b"garbage\r\nContent-Length: 5\r\n",
}


@pytest.mark.parametrize("apart", [0, 1, 7])
@pytest.mark.parametrize("what", LOOSE)
async def test_an_answers_fields_are_put_right_where_it_is_said_how(what: str, apart: int) -> None:
    fields, value = LOOSE[what]
    whole = b"HTTP/1.1 200 OK\r\n" + fields + b"\r\nhello"
    pieces: list[bytes | float] = [whole]
    if apart:
        pieces = [part for at in range(0, len(whole), apart) for part in (whole[at : at + apart], 0.001)]
    script = {"/loose": pieces, "/plain": [b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nplain"]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            answer = await client.ask("POST", "/loose")
            assert (answer.status, answer.reason, answer.body) == (200, "OK", b"hello")
            assert [given for name, given in answer.headers if name == "X-A"] == [value]
            assert (await client.ask("GET", "/plain")).body == b"plain"
        assert up.connections == 1


@pytest.mark.parametrize("what", CONTRADICTING)
async def test_an_answers_fields_that_contradict_each_other_are_no_answer(what: str) -> None:
    script = {"/": [b"HTTP/1.1 200 OK\r\n" + CONTRADICTING[what] + b"\r\nhello"]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", "/")).status == 502


@pytest.mark.parametrize("head", ["HTTP/1.1 200 OK\n", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nX-A : one\r\n"])
async def test_an_answer_whose_lines_end_in_their_own_way_is_refused_at_once(head: str) -> None:
    """What may be put right is waited for to its end; this has none."""
    script = {"/": [head.encode() + b"Content-Length: 5\n\nhello"]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", "/")).status == 502
