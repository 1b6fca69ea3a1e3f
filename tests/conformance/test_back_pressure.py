"""Slow readers and writers are felt at the other side, and memory stays bounded."""

from __future__ import annotations

import asyncio

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

MIB = 1024 * 1024


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: list[int], framing: bytes) -> None:
    """Answer the first request with bytes for as long as they are taken."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + framing + b"\r\n\r\n")
    piece = b"x" * 65536
    if framing.startswith(b"Transfer"):
        piece = b"10000\r\n" + piece + b"\r\n"
    try:
        while True:
            writer.write(piece)
            await writer.drain()
            sent[0] += 65536
    except ConnectionError:
        pass
    finally:
        writer.close()


async def test_a_client_that_does_not_read_stops_the_upstream() -> None:
    for framing in (b"Transfer-Encoding: chunked", b"Content-Length: 100000000000"):
        sent = [0]
        server = await asyncio.start_server(lambda r, w, s=sent, f=framing: flood(r, w, s, f), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
            client.writer.transport.pause_reading()
            client.send(request_bytes("GET", "/flood"))
            before = -1
            async with asyncio.timeout(20):
                while before != sent[0] or sent[0] == 0:
                    before = sent[0]
                    await asyncio.sleep(0.2)
            # Kernel buffers on both connections, and ours: a few MiB, not the whole flood.
            assert sent[0] < 32 * MIB
            stuck = sent[0]
            client.writer.transport.resume_reading()
            await client.head()
            for _ in range(200):
                await client.reader.readexactly(65536)
            assert sent[0] > stuck, "reading on lets the upstream go on"
            client.abort()
            await stack.settled()
        server.close()


async def test_an_upstream_that_does_not_read_stops_the_client() -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(30)

    server = await asyncio.start_server(deaf, "127.0.0.1", 0, limit=65536)
    port = server.sockets[0].getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", "/up", {"Content-Length": "100000000000"}))
        taken, stalled = 0, False
        while not stalled and taken < 64 * MIB:
            client.writer.write(b"x" * 65536)
            taken += 65536
            try:
                await asyncio.wait_for(client.writer.drain(), 0.3)
            except TimeoutError:
                stalled = True
        assert stalled, "the client was never slowed down"
        client.reset()
        await stack.settled()
    server.close()


async def test_a_slow_reader_gets_every_byte() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        size = 8 * MIB
        for framing in ("chunked", "length", "close"):
            client.writer.transport.pause_reading()
            client.send(request_bytes("GET", "/x", mock={"body_size": size, "framing": framing}))
            await asyncio.sleep(0.05)
            client.writer.transport.resume_reading()
            answer = await client.answer(timeout=30)
            assert answer.complete
            assert len(answer.body) == size
        await stack.settled()


async def test_pipelined_requests_of_a_client_that_does_not_read_do_not_pile_up() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.writer.transport.pause_reading()
        for _ in range(64):
            client.send(request_bytes("GET", "/x", mock={"body_size": MIB}))
        before = -1
        async with asyncio.timeout(20):
            while before != len(up.seen) or not up.seen:
                before = len(up.seen)
                await asyncio.sleep(0.2)
        assert len(up.seen) < 32
        client.abort()
        await stack.settled()
