"""Web pages of other origins: preflights pass, and refusals can be read by whoever may read answers."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.config.model import CorsConfig
from tests.conformance.test_keys import CHAT, CHAT_PATH, KEY, Rig
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient

ORIGIN = "https://app.example"
ASKED = {
    "Origin": ORIGIN,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}
STAR = {"headers": [["Access-Control-Allow-Origin", "*"]]}


def allowed(answer: Answer) -> list[str]:
    return [value for name, value in answer.headers if name.lower() == "access-control-allow-origin"]


async def test_a_preflight_reaches_the_upstream_without_a_key() -> None:
    async with Rig() as rig:
        answer = await rig.client.ask("OPTIONS", CHAT_PATH, ASKED, mock={**STAR, "status": 204})
        assert (answer.status, allowed(answer)) == (204, ["*"])
        assert rig.up.seen[-1].method == "OPTIONS"
        assert rig.up.seen[-1].header("origin") == ORIGIN
        assert rig.up.seen[-1].header("access-control-request-headers") == ASKED["Access-Control-Request-Headers"]


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("OPTIONS", {}, b""),
        ("OPTIONS", {"Origin": ORIGIN}, b""),
        ("OPTIONS", {"Access-Control-Request-Method": "POST"}, b""),
        ("OPTIONS", ASKED, b"work"),
        ("OPTIONS", {**ASKED, "Transfer-Encoding": "chunked"}, b"4\r\nwork\r\n0\r\n\r\n"),
        ("POST", ASKED, b"{}"),
        ("GET", ASKED, b""),
    ],
)
async def test_nothing_but_a_preflight_passes_without_a_key(
    method: str, headers: dict[str, str], body: bytes
) -> None:
    async with Rig() as rig:
        answer = await rig.client.ask(method, CHAT_PATH, headers, body)
        assert answer.status == 401
        assert rig.up.seen == []


async def test_a_refusal_can_be_read_where_the_upstreams_answers_can() -> None:
    async with Rig() as rig:
        assert allowed(await rig.chat({"Origin": ORIGIN})) == []
        answer = await rig.client.ask(
            "POST", CHAT_PATH, {"Authorization": f"Bearer {KEY}", "Origin": ORIGIN}, CHAT, mock=STAR
        )
        assert (answer.status, allowed(answer)) == (200, ["*"])
        refused = await rig.chat({"Origin": ORIGIN})
        assert (refused.status, allowed(refused)) == (401, ["*"])


CORS: dict[str, Any] = {"allow_origins": [ORIGIN, "http://localhost:3000"]}


async def test_a_preflight_is_answered_where_origins_are_configured() -> None:
    async with Rig(cors=CORS) as rig:
        answer = await rig.client.ask("OPTIONS", CHAT_PATH, ASKED)
        fields = {name.lower(): value for name, value in answer.headers}
        assert answer.status == 204
        assert fields["access-control-allow-origin"] == ORIGIN
        assert fields["access-control-allow-methods"] == "GET, HEAD, POST, DELETE"
        assert fields["access-control-allow-headers"] == ASKED["Access-Control-Request-Headers"]
        assert fields["access-control-max-age"] == "600"
        assert fields["vary"] == "Origin"
        assert "access-control-allow-credentials" not in fields
        other = await rig.client.ask("OPTIONS", CHAT_PATH, {**ASKED, "Origin": "https://evil.example"})
        assert (other.status, allowed(other)) == (204, [])
        assert rig.up.seen == []


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_and_refusals_name_an_origin_that_is_configured(stream: bool) -> None:
    async with Rig(cors=CORS) as rig:
        known = {"Authorization": f"Bearer {KEY}", "Origin": "http://localhost:3000"}
        for headers, status in ((known, 200), ({"Origin": "http://localhost:3000"}, 401)):
            answer = await rig.chat(headers, stream=stream)
            fields = {name.lower(): value for name, value in answer.headers}
            assert (answer.status, allowed(answer)) == (status, ["http://localhost:3000"])
            assert "X-Trimtab-Reason" in fields["access-control-expose-headers"]
        assert allowed(await rig.chat({**known, "Origin": "https://evil.example"}, stream=stream)) == []
        assert allowed(await rig.chat({"Authorization": f"Bearer {KEY}"}, stream=stream)) == []


async def test_what_the_upstream_says_itself_is_not_said_twice() -> None:
    async with Rig(cors={"allow_origins": ["*"]}) as rig:
        answer = await rig.client.ask(
            "POST", CHAT_PATH, {"Authorization": f"Bearer {KEY}", "Origin": ORIGIN}, CHAT, mock=STAR
        )
        assert allowed(answer) == ["*"]


async def test_without_keys_and_without_a_section_nothing_is_added() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", CHAT_PATH, {"Origin": ORIGIN}, CHAT)
        assert allowed(answer) == []
        preflight = await client.ask("OPTIONS", CHAT_PATH, ASKED, mock=STAR)
        assert allowed(preflight) == ["*"]
        await stack.settled()


UPGRADE = (
    b"GET /v1/realtime?model=m HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %b\r\n\r\n"
)


@pytest.mark.parametrize(
    ("offered", "left"),
    [
        (f"realtime, openai-insecure-api-key.{KEY}, openai-beta.realtime-v1", "realtime, openai-beta.realtime-v1"),
        (f"openai-insecure-api-key.{KEY}", None),
    ],
)
async def test_a_pages_key_among_the_protocols_of_a_websocket_lets_in_and_goes_no_further(
    offered: str, left: str | None
) -> None:
    async with Rig() as rig:
        rig.client.send(UPGRADE % offered.encode())
        status, _, _ = await rig.client.head()
        assert status == 101
        assert rig.up.seen[0].header("sec-websocket-protocol") == left
        rig.client.abort()
        await rig.up.until(lambda: rig.up.open_connections == 0)


@pytest.mark.parametrize("offered", ["realtime", "openai-insecure-api-key.sk-wrong", f"x-{KEY}", KEY])
async def test_other_protocols_let_nobody_in(offered: str) -> None:
    async with Rig() as rig:
        rig.client.send(UPGRADE % offered.encode())
        status, _, _ = await rig.client.head()
        assert status == 401
        assert rig.up.seen == []


@pytest.mark.parametrize(
    "section",
    [
        {"allow_origins": ["app.example"]},
        {"allow_origins": ["https://app.example/"]},
        {"allow_origins": ["https://a b"]},
        {"allow_origins": ["*"], "allow_credentials": True},
        {"allow_origins": ["https://app.example"], "allow_headers": ["a\r\nb"]},
        {"max_age_s": -1},
    ],
)
def test_a_section_that_would_not_do_what_it_says_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"origin|allow_credentials|name of a|greater than"):
        CorsConfig.model_validate(section)
