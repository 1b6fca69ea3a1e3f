"""The admin listener has bounds of its own, so that nobody who reaches it can take the data plane's descriptors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from proxy.admin import requests, server
from proxy.admin.server import AdminServer
from proxy.cli.sockets import bind
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator
from tests.support.raw_http import RawClient, request_bytes

HOST = {"Host": "127.0.0.1"}
MOST = 8


@pytest.fixture
async def port(operator: FakeOperator) -> AsyncIterator[int]:
    sock = bind("127.0.0.1", 0, key="admin", flag="--admin-port")
    admin = AdminServer(operator, AdminConfig(port=0, max_connections=MOST))
    await admin.start(sock)
    yield sock.getsockname()[1]
    await admin.stop()


@pytest.mark.parametrize("words", [b"", b"GET /metrics HTTP/1.1\r\nHos"])
async def test_idle_connections_make_room(port: int, words: bytes) -> None:
    async with AsyncExitStack() as clients:
        idle = [await clients.enter_async_context(RawClient(port)) for _ in range(3 * MOST)]
        for client in idle:
            client.send(words)
        async with RawClient(port) as client:
            assert (await client.ask("GET", "/admin/v1/pools", HOST)).status == 200
        for client in idle[:MOST]:
            assert await client.closed() == b""


async def test_kept_connections_make_room(port: int) -> None:
    async with AsyncExitStack() as clients:
        for _ in range(2 * MOST):
            client = await clients.enter_async_context(RawClient(port))
            assert (await client.ask("GET", "/admin/v1/pools", HOST)).status == 200


async def test_where_all_are_busy_a_newcomer_is_told(port: int) -> None:
    async with AsyncExitStack() as clients:
        for _ in range(MOST):
            client = await clients.enter_async_context(RawClient(port))
            client.send(request_bytes("GET", "/admin/v1/events", HOST))
            assert (await client.head())[0] == 200
        async with RawClient(port) as client:
            answer = await client.answer()
            assert (answer.status, answer.header("content-type")) == (503, "application/problem+json")
            assert answer.header("retry-after") == "1"


async def test_a_dribbled_head_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.1)
    async with RawClient(port) as client:
        head = b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 1_000

        async def dribble() -> None:
            for at in range(len(head)):
                client.send(head[at : at + 1])
                await asyncio.sleep(0.005)

        dribbling = asyncio.ensure_future(dribble())
        assert await client.closed() == b""
        dribbling.cancel()


async def test_a_dribbled_body_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_BODY_S", 0.2)
    async with RawClient(port) as client:
        client.send(
            request_bytes(
                "PATCH",
                "/admin/v1/pools/chat/slo",
                {**HOST, "Content-Type": "application/json", "Content-Length": "10000"},
            )
        )

        async def dribble() -> None:
            while True:
                client.send(b" ")
                await asyncio.sleep(0.01)

        dribbling = asyncio.ensure_future(dribble())
        answer = await client.answer()
        dribbling.cancel()
        assert answer.status == 400
        assert "did not arrive" in answer.json["detail"]
