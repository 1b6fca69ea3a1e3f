"""Active health checks: who fails them gets nothing, and comes back by passing them."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio

import pytest

from proxy.upstream.health import Health
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
HEALTH = {"path": "/health", "interval_ms": 3_600_000, "timeout_ms": 200, "unhealthy_after": 2, "healthy_after": 2}


async def test_an_upstream_that_fails_its_checks_gets_no_requests_until_it_passes_them() -> None:
    async with MockUpstream() as sick, MockUpstream() as fine:
        async with Stack(sick.url, fine.url, health=HEALTH) as stack, RawClient(stack.port) as client:
            prober = stack.pool._prober
            sick.default = Behaviour(status=500)
            await prober.round()
            assert stack.pool.stats()["upstreams"][0]["state"] == "up", "one failure is not enough"
            await prober.round()
            assert stack.pool.stats()["upstreams"][0]["state"] == "down"
            for _ in range(6):
                assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            assert {seen.method for seen in sick.seen} == {"GET"}
            sick.default = Behaviour()
            await prober.round()
            await prober.round()
            assert stack.pool.stats()["upstreams"][0]["state"] == "up"
            for _ in range(6):
                assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            assert sum(seen.method == "POST" for seen in sick.seen) >= 1
            await stack.settled()


async def test_a_check_that_hangs_fails() -> None:
    async with MockUpstream(Behaviour(hang=True)) as up:
        config = {"health": {**HEALTH, "timeout_ms": 30}, "queue": {"upstream_wait_ms": 0}}
        async with Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            prober = stack.pool._prober
            await prober.round()
            await prober.round()
            answer = await client.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "no_upstream")


async def test_without_a_health_path_connecting_is_the_check() -> None:
    async with MockUpstream() as gone:
        dead = gone.url
    async with MockUpstream() as up, Stack(up.url, dead) as stack:
        for _ in range(3):
            await stack.pool._prober.round()
        assert [u["state"] for u in stack.pool.stats()["upstreams"]] == ["up", "down"]
        assert up.seen == []
        assert up.connections == 1, "the connection that was made for it is kept and used again"


async def test_checks_repeat_by_themselves() -> None:
    health = {**HEALTH, "interval_ms": 100}
    async with MockUpstream() as up, Stack(up.url, health=health):
        await up.until(lambda: len(up.seen) >= 3)
        assert {seen.target for seen in up.seen} == {"/health"}


async def test_those_who_wait_are_told_when_nobody_is_left_to_serve_them() -> None:
    config = {
        "setpoints": {"max_batch_size": 1, "window_ms": 0},
        "health": HEALTH,
        "queue": {"upstream_wait_ms": 1},
    }
    async with MockUpstream() as up, Stack(up.url, **config) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as two:
            first = asyncio.create_task(one.ask("POST", PATH, body=CHAT, mock={"gate": "go"}))
            await up.until(lambda: len(up.seen) == 1)
            second = asyncio.create_task(two.ask("POST", PATH, body=CHAT))
            async with asyncio.timeout(5):
                while not len(stack.pool.queue):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            for endpoint in stack.pool.group.endpoints:
                assert [endpoint.probed(Health.ILL, 0.0) for _ in range(2)] == [False, True]
            stack.pool.holding.presence.look()
            up.open("go")
            assert (await first).status == 200
            assert (await second).status == 503
        await stack.settled()


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/health", "/ping", "/metrics", "/-/healthz", "/-/routes"])
async def test_the_upstreams_own_health_is_the_upstreams(path: str) -> None:
    loading = {"status": 503, "body": "model loading"}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", path, mock=loading)
        assert (answer.status, answer.body) == (503, b"model loading")


async def test_our_own_health_has_a_prefix_and_the_old_names_if_asked_for() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for name in ("healthz", "readyz"):
            assert (await client.ask("GET", f"/-/trimtab/{name}")).body == b"ok\n"
        assert up.seen == []
        stack.handler.service.answer_plain_probes()
        for path in ("/healthz", "/readyz", "/-/trimtab/healthz"):
            assert (await client.ask("GET", path)).body == b"ok\n"
        assert up.seen == []
