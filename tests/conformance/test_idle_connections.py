"""Connections are kept, and nobody notices when a server closes one."""

from __future__ import annotations

import asyncio

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
