"""Trailers pass in both directions, but for those that would mislead."""

from __future__ import annotations

import asyncio

import pytest

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
