"""Readiness follows the upstreams: nobody is sent here before somebody is there to serve them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port

Make = Callable[..., Any]
QUICK = {"interval_ms": 100, "unhealthy_after": 1}


class Server:
    """Says whether it is well the way inference servers do."""

    def __init__(self) -> None:
        self.status = 503
        self.asked = 0

    async def health(self, request: web.Request) -> web.Response:
        """Answer a health check."""
        self.asked += 1
        return web.Response(status=self.status)


@pytest.fixture
async def loading() -> AsyncIterator[tuple[Server, str]]:
    server = Server()
    app = web.Application()
    app.router.add_get("/health", server.health)
    async with TestServer(app) as running:
        yield server, str(running.make_url("")).rstrip("/")


async def ready(rig: Any, base: str) -> bool:
    async with rig.http.get(f"{base}/readyz") as answer:
        return bool(answer.status == 200)


async def test_not_ready_before_an_upstream_is_well_and_after_none_is(
    make_rig: Make, loading: tuple[Server, str]
) -> None:
    server, url = loading
    rig = await make_rig(upstreams=[{"url": url, "profile": "vllm"}], health=QUICK)
    await until_asked(server)
    assert not await ready(rig, rig.admin)
    assert not await ready(rig, f"{rig.data}/-/trimtab")
    assert rig.proxy.unready() == ["pool default: no upstream is available"]
    server.status = 200
    await until(lambda: not rig.proxy.unready())
    assert await ready(rig, rig.admin)
    assert await ready(rig, f"{rig.data}/-/trimtab")
    server.status = 500
    await until(lambda: bool(rig.proxy.unready()))
    server.status = 200
    await until(lambda: not rig.proxy.unready())


async def test_one_pool_that_can_serve_is_enough(make_rig: Make, loading: tuple[Server, str]) -> None:
    """Without a health path a server is well that takes connections."""
    absent = f"http://127.0.0.1:{unused_port()}"
    pools = [
        {"name": "absent", "upstreams": [absent], "match": {"models": ["absent"]}},
        {"name": "there", "upstreams": [loading[1]]},
    ]
    rig = await make_rig(pools=pools)
    await until(lambda: not rig.proxy.unready())


async def test_a_reload_does_not_make_it_unready(make_rig: Make, loading: tuple[Server, str]) -> None:
    server, url = loading
    server.status = 200
    rig = await make_rig(upstreams=[{"url": url, "profile": "vllm"}])
    await until(lambda: not rig.proxy.unready())
    rig.reload_to(upstreams=[{"url": url, "profile": "vllm"}], queue={"max_requests": 7})
    await rig.proxy.reload()
    assert not rig.proxy.unready()


async def until_asked(server: Server) -> None:
    asked = server.asked
    await until(lambda: server.asked > asked + 1)


async def until(true: Callable[[], object]) -> None:
    """Wait for something that probes bring about, which come by the clock."""
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - an upstream tells nobody that its health was noticed
            await asyncio.sleep(0.01)
