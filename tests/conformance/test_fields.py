"""Header fields in both directions: passed as written, but for those of one hop and our own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

HOP_BY_HOP = {
    "Connection": "close, X-Named",
    "Keep-Alive": "timeout=5",
    "Proxy-Connection": "keep-alive",
    "Proxy-Authorization": "Basic c2VjcmV0",
    "TE": "trailers",
    "Trailer": "X-T",
    "X-Named": "1",
}


async def test_hop_by_hop_fields_do_not_reach_the_upstream() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {**HOP_BY_HOP, "X-Kept": "yes"})
        seen = up.seen[-1]
        for name in HOP_BY_HOP:
            # Trailers are passed on, so they may be asked for anew.
            expected = {"TE": "trailers", "Connection": "TE"}.get(name)
            assert seen.header(name) == expected, name
        assert seen.header("x-kept") == "yes"


async def test_hop_by_hop_fields_do_not_reach_the_client() -> None:
    headers = [["Connection", "X-Named"], ["Keep-Alive", "timeout=9"], ["X-Named", "1"], ["X-Kept", "yes"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", mock={"headers": headers})
        for name in ("connection", "keep-alive", "x-named"):
            assert answer.header(name) is None, name
        assert answer.header("x-kept") == "yes"


async def test_duplicate_fields_keep_their_number_order_and_spelling() -> None:
    headers = [["Set-Cookie", "a=1"], ["sEt-CooKie", "b=2"], ["X-Multi", "1"], ["X-Multi", "2"]]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", [("X-Up", "1"), ("x-up", "2")], mock={"headers": headers})
        assert [h for h in answer.headers if h[0].lower() == "set-cookie"] == [
            ("Set-Cookie", "a=1"),
            ("sEt-CooKie", "b=2"),
        ]
        assert answer.all("x-multi") == ["1", "2"]
        assert [h for h in up.seen[-1].headers if h[0].lower() == "x-up"] == [("X-Up", "1"), ("x-up", "2")]


async def test_host_is_the_upstreams_and_the_original_is_passed_on() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {"Host": "api.example:8443", "X-Forwarded-For": "10.0.0.9", "Via": "1.0 front"})
        seen = up.seen[-1]
        assert seen.all("host") == [f"127.0.0.1:{up.port}"]
        assert seen.all("x-forwarded-host") == ["api.example:8443"]
        assert seen.all("x-forwarded-for") == ["10.0.0.9, 127.0.0.1"]
        assert seen.all("x-forwarded-proto") == ["http"]
        assert seen.all("via") == ["1.0 front, 1.1 trimtab"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [("abc-123", True), ("a" * 128, True), ("a" * 129, False), ("bad id", False), ("", False), ('x"y', False)],
)
async def test_request_id_is_kept_or_made_and_told_to_both_sides(given: str, kept: bool) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("GET", "/x", {"X-Request-Id": given})
        told = answer.header("x-request-id")
        assert told
        assert (told == given) is kept
        assert up.seen[-1].all("x-request-id") == [told]


async def test_internal_headers_from_clients_are_not_forwarded() -> None:
    headers = {"X-Trimtab-Predicted-Tokens": "1", "x-trimtab-class": "batch", "X-TRIMTAB-SECRET": "s"}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", headers)
        assert not [name for name, _ in up.seen[-1].headers if name.lower().startswith("x-trimtab")]


async def test_credentials_are_passed_or_replaced_never_doubled_or_empty() -> None:
    async with MockUpstream() as up:
        async with Stack(up.url) as stack, RawClient(stack.port) as client:
            await client.ask("GET", "/x", {"Authorization": "Bearer mine"})
            assert up.seen[-1].all("authorization") == ["Bearer mine"]
            await client.ask("GET", "/x")
            assert up.seen[-1].all("authorization") == []
        own: dict[str, Any] = {"upstreams": [{"url": up.url, "api_key": "k-upstream"}]}
        async with Stack(**own) as stack, RawClient(stack.port) as client:
            await client.ask("GET", "/x", {"Authorization": "Bearer mine"})
            assert up.seen[-1].all("authorization") == ["Bearer k-upstream"]


async def test_traceparent_and_other_unknown_fields_pass() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("GET", "/x", {"traceparent": "00-ab-cd-01", "OpenAI-Organization": "org", "Cookie": "a=b"})
        seen = up.seen[-1]
        assert (seen.header("traceparent"), seen.header("openai-organization"), seen.header("cookie")) == (
            "00-ab-cd-01",
            "org",
            "a=b",
        )


async def test_ranges_and_conditional_requests_pass() -> None:
    headers = [["Content-Range", "bytes 0-4/100"], ["ETag", '"x"']]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "GET", "/f", {"Range": "bytes=0-4", "If-None-Match": '"y"'},
            mock={"status": 206, "body": "12345", "headers": headers},
        )  # fmt: skip
        assert (answer.status, answer.header("content-range"), answer.header("etag")) == (206, "bytes 0-4/100", '"x"')
        assert up.seen[-1].header("range") == "bytes=0-4"
        assert up.seen[-1].header("if-none-match") == '"y"'
