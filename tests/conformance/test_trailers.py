"""Trailers pass in both directions, but for those that would mislead."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.literal_upstream import LiteralUpstream
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient


async def test_trailers_pass() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for gap in (0.0, 0.005):
            mock = {"tokens": 3, "gap": gap, "trailers": [["X-Checksum", "abc"]]}
            answer = await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock=mock)
            assert answer.trailers == (("X-Checksum", "abc"),)


async def test_trailers_of_an_answer_that_would_mislead_are_dropped() -> None:
    trailers = [["Host", "evil"], ["X-Sum", "1"], ["Set-Cookie", "a=b"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for gap in (0.0, 0.005):
            mock = {"tokens": 3, "gap": gap, "trailers": trailers}
            answer = await client.ask("POST", "/v1/chat/completions", body={**CHAT, "stream": True}, mock=mock)
            assert answer.trailers == (("X-Sum", "1"),)


TRAILED = (
    b"POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
    b"Trailer: X-Sum, X-More\r\nTE: trailers\r\n\r\n"
)
TRAILED_BODY = (
    b"5\r\nhello\r\n3;x=y\r\n\r\n0\r\n0\r\nX-Sum: abc\r\n"
    b"Authorization: evil\r\nx-trimtab-class: top\r\nX-More: \r\n\r\n"
)


@pytest.mark.parametrize("split", [0, 1, 4, 9, 12, 22, 30, 45, 60, 75])
async def test_trailers_of_an_upload_reach_the_upstream_however_they_are_cut(split: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            client.send(TRAILED + TRAILED_BODY[:split])
            if split:
                await asyncio.sleep(0.002)
            client.send(TRAILED_BODY[split:])
            assert (await client.answer()).status == 200
            seen = up.seen[-1]
            assert seen.body == b"hello\r\n0"
            assert seen.trailers == [("X-Sum", "abc"), ("X-More", "")], "and none that frames or routes"
            assert seen.header("trailer") == "X-Sum, X-More"
            assert (seen.header("te"), seen.header("connection")) == ("trailers", "TE")
            assert (await client.ask("GET", "/y")).body == b"GET /y"


async def test_trailers_that_were_not_announced_are_dropped() -> None:
    head = TRAILED.replace(b"Trailer: X-Sum, X-More\r\n", b"")
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(head + TRAILED_BODY)
        assert (await client.answer()).status == 200
        assert (up.seen[-1].body, up.seen[-1].trailers) == (b"hello\r\n0", [])


def _upload(path: str, body: bytes, trailer: bytes = b"") -> bytes:
    head = b"POST /%b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" % path.encode()
    announced = b"Trailer: X-Sum\r\nTE: trailers\r\n" if trailer else b""
    fields = b"X-Sum: %b\r\n" % trailer if trailer else b""
    return b"%b%b\r\n%x\r\n%b\r\n0\r\n%b\r\n" % (head, announced, len(body), body, fields)


ANNOUNCED = b"POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n1\r\nb\r\n0\r\n\r\n"


@pytest.mark.parametrize("step", [0, 1, 7, 40, 97, 150])
async def test_trailers_of_pipelined_requests_never_go_on_with_another(step: int) -> None:
    """Each has its own or, where it is not clear whose they are, none."""
    stream = _upload("a", b"first", b"one") + ANNOUNCED + _upload("c", b"third", b"three") + _upload("d", b"fourth")
    own = {"/a": [("X-Sum", "one")], "/b": [], "/c": [("X-Sum", "three")], "/d": []}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for at in range(0, len(stream), step or len(stream)):
            client.send(stream[at : at + (step or len(stream))])
            await asyncio.sleep(0.001)
        for _ in own:
            assert (await client.answer()).status == 200
        for seen in up.seen:
            assert seen.trailers in ([], own[seen.target]), seen.target
        assert [seen.target for seen in up.seen] == list(own)


async def test_a_body_that_looks_like_a_request_with_trailers_gives_none_to_the_next() -> None:
    inner = b"x" * 10 + b"\r\n\r\n0\r\nX-Sum: evil\r\n\r\n"
    first = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(inner), inner)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(2):
            client.send(first[:60])
            await asyncio.sleep(0.005)
            client.send(first[60:] + ANNOUNCED)
            assert [(await client.answer()).status for _ in range(2)] == [200, 200]
            assert [seen.trailers for seen in up.seen[-2:]] == [[], []]


async def test_too_many_trailers_behind_an_upload_go_no_further() -> None:
    many = b"".join([b"X-%d: 1\r\n" % number for number in range(1000)])
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(ANNOUNCED[:-2] + many + b"\r\n")
        assert (await client.answer()).status in (200, 400, 431)
        assert all(len(seen.trailers) <= 128 for seen in up.seen)


@pytest.mark.parametrize(
    "tail",
    [
        b"0\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
        b"0\r\nX-A: " + b"b" * 20_000 + b"\r\n\r\n",
        b"1;" + b"e" * 5_000 + b"\r\na\r\n0\r\n\r\n",
        b"1;eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee\r\na\r\n" * 500 + b"0\r\n\r\n",
    ],
    ids=["many trailers", "a long trailer", "a long extension", "many extensions"],
)
async def test_an_answers_trailers_and_extensions_are_bounded(tail: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nmine\r\n"
    async with (
        LiteralUpstream({"/a": [head, 0.005, tail]}) as up,
        Stack(up.url) as stack,
        RawClient(stack.port) as client,
    ):
        assert not (await client.ask("GET", "/a")).complete


@pytest.mark.parametrize(
    "flood", [b"HTTP/1.1 103 A\r\n\r\n" * 40, b"HTTP/1.1 103 A\r\nX: " + b"y" * 70_000 + b"\r\n\r\n"]
)
async def test_interim_answers_are_bounded(flood: bytes) -> None:
    script = {"/a": [flood + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]}
    async with LiteralUpstream(script) as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/a")).status == 502
