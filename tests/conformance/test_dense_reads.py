"""Reads that are costly to parse are parsed in portions, and mean what they mean in one piece."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from proxy.http.portions import PORTION, is_costly
from proxy.http.protocol import ClientProtocol
from tests.conformance.test_upgrade import UPGRADE
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

HEAD = b"POST /upload HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\n"
CHUNKS = 20_000


def test_what_is_costly_is_what_has_many_short_lines() -> None:
    assert is_costly(b"1\r\nx\r\n" * 2000)
    assert not is_costly(b"1\r\nx\r\n" * 40), "little is never costly"
    assert not is_costly(b"x" * 1_000_000)
    assert not is_costly((b"x" * 255 + b"\n") * 1000), "text, or anything binary, in large chunks"


async def test_no_more_than_a_portion_is_parsed_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    take_in = ClientProtocol._take_in

    def counted(self: ClientProtocol, data: bytes) -> None:
        sizes.append(len(data))
        take_in(self, data)

    monkeypatch.setattr(ClientProtocol, "_take_in", counted)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * CHUNKS + b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        assert max(sizes) <= PORTION
        sizes.clear()
        large = b"%x\r\n%b\r\n" % (CHUNKS, b"x" * CHUNKS)
        client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + large * 50 + b"0\r\n\r\n")
        assert (await client.answer()).status == 200
        assert max(sizes) > PORTION, "what is cheap is parsed as it came"
        await stack.settled()


@pytest.mark.parametrize("piece", [b"1\r\nx\r\n", b"1;a=b\r\nx\r\n"], ids=["chunks", "extensions"])
@pytest.mark.parametrize("trailer", [b"", b"Trailer: x-sum\r\n"], ids=["no trailer", "trailer"])
async def test_a_body_of_the_shortest_chunks_arrives_whole_and_holds_nobody_up(piece: bytes, trailer: bytes) -> None:
    async with AsyncExitStack() as within:
        up = await within.enter_async_context(MockUpstream())
        stack = await within.enter_async_context(Stack(up.url))
        hostile, honest = [await within.enter_async_context(RawClient(stack.port)) for _ in range(2)]
        end = b"0\r\nX-Sum: 7\r\n\r\n" if trailer else b"0\r\n\r\n"
        hostile.send(HEAD + trailer + b"Transfer-Encoding: chunked\r\n\r\n" + piece * CHUNKS + end)
        assert (await honest.ask("GET", "/v1/models")).status == 200
        assert (await hostile.answer()).status == 200
        seen = next(each for each in up.seen if each.target == "/upload")
        assert seen.body == b"x" * CHUNKS
        assert seen.header("x-sum") is None or trailer
        assert (await hostile.ask("GET", "/v1/models")).status == 200, "the connection goes on"
        await stack.settled()


async def test_requests_in_one_read_are_answered_in_their_order() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(b"".join(b"GET /a?%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(600)))
        for _ in range(600):
            assert (await client.answer()).status == 200
        assert [seen.target for seen in up.seen] == [f"/a?{n}" for n in range(600)]
        await stack.settled()


async def test_one_who_leaves_in_the_middle_leaves_nothing_behind() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        for _ in range(5):
            async with RawClient(stack.port) as client:
                client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * CHUNKS)
                await asyncio.sleep(0.005)
                client.abort()
        await stack.settled()


async def test_bytes_of_a_websocket_behind_its_head_keep_their_order() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        early = b"".join(b"%d\n" % n for n in range(4 * PORTION))
        client.send(UPGRADE + early)
        status, _, _ = await client.head()
        assert status == 101
        later = b"later\n" * PORTION
        client.send(later)
        got = await client.reader.readexactly(len(b"hello" + early + later))
        assert got == b"hello" + early + later
        client.abort()
        await up.until(lambda: up.open_connections == 0)
        await stack.settled()
