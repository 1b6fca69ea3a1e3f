"""A path in an upstream's URL stands before the request's own, but a version never twice."""

from __future__ import annotations

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

CASES = [
    ("", "/v1/chat/completions", "/v1/chat/completions"),
    ("/v1", "/v1/chat/completions", "/v1/chat/completions"),
    ("/v1/", "/v1/chat/completions?a=/v1", "/v1/chat/completions?a=/v1"),
    ("/v1", "/chat/completions", "/v1/chat/completions"),
    ("/v1", "/v1", "/v1"),
    ("/v1", "/v10/x", "/v1/v10/x"),
    ("/v1", "/v2/models/m/infer", "/v1/v2/models/m/infer"),
    ("/team-a", "/v1/chat/completions", "/team-a/v1/chat/completions"),
    ("/team-a", "/team-a/x", "/team-a/team-a/x"),
    ("/team-a/v1", "/v1/chat/completions", "/team-a/v1/chat/completions"),
    ("/v1beta", "/v1beta/models/m:generateContent", "/v1beta/models/m:generateContent"),
]


@pytest.mark.parametrize(("prefix", "asked", "sent"), CASES)
async def test_what_is_sent(prefix: str, asked: str, sent: str) -> None:
    async with MockUpstream() as up, Stack(up.url + prefix) as stack, RawClient(stack.port) as client:
        await client.ask("POST", asked, body=b'{"model":"m"}')
        assert up.seen[-1].target == sent


@pytest.mark.parametrize(
    ("health", "sent"),
    [({}, "/health"), ({"path": "/v1/models"}, "/v1/models"), ({"path": "/models"}, "/v1/models")],
)
async def test_where_health_is_asked_for(health: dict[str, str], sent: str) -> None:
    async with MockUpstream() as up:
        upstreams = [{"url": f"{up.url}/v1", "profile": "vllm"}]
        async with Stack(pools=[{"upstreams": upstreams, "health": health}]) as stack:
            await stack.pool._prober.round()
            assert up.seen[-1].target == sent
