"""Connections are kept, and nobody notices when a server closes one."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient


async def test_connections_are_kept_and_reused() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for _ in range(20):
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
        assert up.connections == 1


@pytest.mark.parametrize("how", [{"drop_idle": True}, {"close": True}])
async def test_a_server_that_closes_kept_connections_costs_no_request(how: dict[str, object]) -> None:
    async with MockUpstream(Behaviour(**how)) as up, Stack(up.url) as stack:  # type: ignore[arg-type]

        async def caller() -> None:
            async with RawClient(stack.port) as client:
                for _ in range(100):
                    answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
                    assert answer.status == 200, answer

        await asyncio.gather(*[caller() for _ in range(10)])
        await stack.settled()
        assert stack.counts.retries == 0, "a race with an idle timeout is nobody's failure"
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] == 0


async def test_idle_connections_are_closed_before_the_server_does() -> None:
    async with (
        MockUpstream() as up,
        Stack(up.url, connections={"idle_ms": 30}) as stack,
        RawClient(stack.port) as client,
    ):
        await client.ask("GET", "/x")
        assert up.open_connections == 1
        await up.until(lambda: up.open_connections == 0)


class Abrupt(asyncio.Protocol):
    """Answers every request with an error and closes the connection a moment later, without having said so.

    Servers do that whose application breaks behind its answer. What comes in between is never read.
    """

    read = 0

    def __init__(self, status: int) -> None:
        self.status = status

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        if not self.data.endswith((b"once", b"0\r\n\r\n")):
            return
        type(self).read += 1
        self.transport.write(b"HTTP/1.1 %d Sorry\r\nContent-Length: 5\r\n\r\nsorry" % self.status)
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.02, self.transport.close)


ONCE = {
    "nobody knows what it does": ("/transfer-money", {}, b"once"),
    "a body that is not its protocol's": ("/v1/models/m:predict", {}, b'{"instances": once'),
    "an upload": ("/up", {"Transfer-Encoding": "chunked"}, b"4\r\nonce\r\n0\r\n\r\n"),
}
"""What must not be sent twice: path, fields, body."""


@pytest.mark.parametrize("status", [400, 404, 422, 500])
@pytest.mark.parametrize("what", ONCE)
async def test_a_connection_that_brought_an_error_does_not_lose_what_must_not_be_sent_twice(
    status: int, what: str
) -> None:
    path, fields, body = ONCE[what]
    server = await asyncio.get_running_loop().create_server(lambda: Abrupt(status), "127.0.0.1", 0)
    Abrupt.read = 0
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, Stack(url) as stack, RawClient(stack.port) as client:
        for asked in range(1, 6):
            answer = await client.ask("POST", path, fields, body=body)
            assert (answer.status, answer.body) == (status, b"sorry")
            assert Abrupt.read == asked


@pytest.mark.parametrize("what", ONCE)
async def test_what_must_not_be_sent_twice_goes_over_no_connection_that_rested_for_long(what: str) -> None:
    path, fields, body = ONCE[what]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for opened in (1, 1, 2):
            if opened == 2:
                for connection in stack.pool.group.endpoints[0].connections._idle:
                    connection.idle_since -= 2.0
            await client.ask("POST", path, fields, body=body)
            assert up.connections == opened
