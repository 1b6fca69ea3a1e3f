"""What callers ask for by header, and have not spelled right."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.access.keys import hash_key
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY = "k" * 24


@pytest.mark.parametrize("field", ["x-trimtab-timeout-ms", "X-SLO-TTFT-Ms"])
@pytest.mark.parametrize("value", ["abc", "", "0", "-5", "nan", "inf", "1e12", "5s"])
async def test_a_patience_that_is_none_is_400_that_says_what_would_be_right(field: str, value: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", "/v1/chat/completions", {field: value}, body=CHAT)
        assert answer.status == 400
        error = answer.json["error"]
        assert error["param"] == field.lower()
        assert "milliseconds above 0" in error["message"]
        assert repr(value) in error["message"]
        assert (await client.ask("POST", "/v1/chat/completions", {field: "2500"}, body=CHAT)).status == 200
        assert len(up.seen) == 1
        await stack.settled()


async def test_it_is_refused_before_the_body_is_asked_for() -> None:
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n"
        b"Expect: 100-continue\r\nx-trimtab-timeout-ms: soon\r\n\r\n"
    )
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(head)
        assert (await client.answer()).status == 400


async def test_it_is_refused_again_where_the_head_repeats() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        asked = [("POST", "/v1/chat/completions", {"x-slo-ttft-ms": "soon"})] * 3
        answers = [await client.ask(*one, body=CHAT) for one in asked]
        assert [answer.status for answer in answers] == [400] * 3
        assert up.seen == []


async def test_a_class_that_does_not_exist_is_400_that_names_those_that_do() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(
            "POST", "/v1/messages", {"x-trimtab-class": "nosuch"}, body=CHAT | {"max_tokens": 1}
        )
        assert answer.status == 400
        assert answer.json["type"] == "error"
        for said in ("'nosuch'", "interactive", "default", "batch"):
            assert said in answer.json["error"]["message"]
        assert up.seen == []


@pytest.mark.parametrize("key", [{}, {"trust_headers": True}, {"ceiling": "batch"}])
async def test_whoever_has_a_key_hears_of_it_too(key: dict[str, Any]) -> None:
    keys = [{"name": "alice", "hash": hash_key(KEY), **key}]
    async with MockUpstream() as up, Stack(up.url, keys=keys) as stack, RawClient(stack.port) as client:
        headers = {"authorization": f"Bearer {KEY}", "x-trimtab-class": "nosuch"}
        assert (await client.ask("POST", "/v1/chat/completions", headers, body=CHAT)).status == 400
        assert up.seen == []


async def test_a_class_from_callers_who_may_name_none_is_dropped_unread() -> None:
    async with MockUpstream() as up, Stack(up.url, trust_headers=False) as stack, RawClient(stack.port) as client:
        headers = {"x-trimtab-class": "nosuch"}
        assert (await client.ask("POST", "/v1/chat/completions", headers, body=CHAT)).status == 200
        assert up.seen[0].header("x-trimtab-class") is None


async def test_the_class_is_read_by_the_pool_that_is_asked_first() -> None:
    async with MockUpstream() as up:
        pools = [
            {"name": "a", "upstreams": ["http://127.0.0.1:9"], "classes": {"gold": {}}, "default_class": "gold",
             "fallback": "b"},
            {"name": "b", "upstreams": [up.url], "match": {"paths": ["/other"]}},
        ]  # fmt: skip
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            headers = {"x-trimtab-class": "gold"}
            assert (await client.ask("POST", "/v1/chat/completions", headers, body=CHAT)).status == 200
            assert [obs.klass for obs, _, _ in stack.counts.finished] == ["default"]
