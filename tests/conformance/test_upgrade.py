"""WebSocket upgrades pass, and only they do."""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

UPGRADE = (
    b"GET /ws?x=1 HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_bytes_pass_both_ways_after_the_switch() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(UPGRADE + b"early")
        status, _, headers = await client.head()
        fields = {name.lower(): value for name, value in headers}
        assert status == 101
        assert fields["upgrade"] == "websocket"
        assert fields["connection"] == "Upgrade"
        assert fields["sec-websocket-accept"] == "mock"
        assert await client.reader.readexactly(10) == b"helloearly"
        seen = up.seen[0]
        assert seen.target == "/ws?x=1"
        assert seen.header("connection") == "Upgrade"
        assert seen.header("sec-websocket-version") == "13"
        for n in range(50):
            message = bytes([n]) * (n * 1000 + 1)
            client.send(message)
            assert await client.reader.readexactly(len(message)) == message
        assert stack.pool.ledger.leases == 1
        client.abort()
        await up.until(lambda: up.open_connections == 0)
        await stack.settled()
        assert stack.counts.finished[-1][2] == 101


async def test_the_upstream_closing_closes_the_client() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(UPGRADE)
        await client.head()
        await client.reader.readexactly(5)
        up.close_idle()
        assert await client.closed() == b""
        await stack.settled()


async def test_a_flood_through_a_tunnel_is_held_back() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(UPGRADE)
        await client.head()
        await client.reader.readexactly(5)
        block = b"z" * 1_000_000
        for _ in range(16):
            client.send(block)
        total = 0
        while total < 16_000_000:
            total += len(await client.reader.read(1 << 20))
            if total < 300_000:
                await asyncio.sleep(0.05)
        assert total == 16_000_000
        client.abort()
        await stack.settled()


async def test_a_real_websocket_client_and_server() -> None:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str("you said " + message.data)
        return socket

    app = web.Application()
    app.router.add_get("/v1/realtime", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    async with Stack(f"http://127.0.0.1:{port}") as stack:
        async with aiohttp.ClientSession() as session, session.ws_connect(stack.url + "/v1/realtime") as socket:
            for n in range(20):
                await socket.send_str(f"täst {n}")
                assert (await socket.receive_str()) == f"you said täst {n}"
        await stack.settled()
    await runner.cleanup()


async def test_a_declined_upgrade_is_an_ordinary_answer() -> None:
    async def decline(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno")

    server = await asyncio.start_server(decline, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
        client.send(UPGRADE)
        answer = await client.answer()
        assert (answer.status, answer.body) == (426, b"no")
        await stack.settled()
    server.close()


async def test_a_request_pipelined_behind_an_upgrade_is_never_smuggled_past_its_answer() -> None:
    """It reaches the upstream only as bytes of the tunnel that the client asked for."""
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(UPGRADE + b"GET /admin HTTP/1.1\r\nHost: a\r\n\r\n")
        status, _, _ = await client.head()
        assert status == 101
        await client.reader.readexactly(5)
        assert [seen.target for seen in up.seen] == ["/ws?x=1"]
        client.abort()
        await stack.settled()


async def test_other_upgrades_are_not_offered_to_the_upstream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "GET", "/x", {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AA"}
        )
        assert answer.status == 200
        seen = up.seen[0]
        assert seen.header("upgrade") is None
        assert seen.header("connection") is None
        assert seen.header("http2-settings") is None
        assert (await client.ask("GET", "/y")).status == 200
        await stack.settled()


async def test_an_unasked_for_switch_is_502() -> None:
    async def switch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: evil\r\nConnection: Upgrade\r\n\r\n")

    server = await asyncio.start_server(switch, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with Stack(f"http://127.0.0.1:{port}", retries={"max": 0}) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/x")).status == 502
        await stack.settled()
    server.close()
