"""The access log of real requests: a line for each, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.access.keys import hash_key
from proxy.config.model import LogConfig
from proxy.observe import logs
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PATH = "/v1/chat/completions"
KEY = "sk-never-to-be-written-down"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "my-private-words"}]}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LOG = {"access": True}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.setup(LogConfig(format="json", level="debug"), stream)
    yield stream
    logging.getLogger("trimtab").handlers = []


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["logger"] == "trimtab.access"]


async def test_each_request_has_a_line_and_no_line_a_secret(written: io.StringIO) -> None:
    keys = [{"name": "alice", "hash": hash_key(KEY), "limits": {"requests_per_minute": 2}}]
    shown = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine", "Traceparent": TRACE, "Cookie": "private=1"}
    async with MockUpstream() as up, Stack(up.url, keys=keys, log=LOG) as stack, RawClient(stack.port) as client:
        answers = [
            await client.ask("POST", PATH, shown, body=CHAT),
            await client.ask("POST", PATH, shown, body={**CHAT, "stream": True}),
            await client.ask("POST", PATH, shown, body=CHAT),
            await client.ask("POST", f"{PATH}?key={KEY}", {"x-api-key": f"{KEY}-almost"}, body=CHAT),
            await client.ask("GET", f"/nowhere/{KEY}"),
            await client.ask("GET", "/-/trimtab/healthz"),
        ]
        assert up.seen[0].header("traceparent") == TRACE
        await stack.settled()
    assert [answer.status for answer in answers] == [200, 200, 429, 401, 401, 200]
    found = lines(written)
    assert [(line["code"], line["reason"], line["tenant"]) for line in found] == [
        (200, "", "alice"), (200, "", "alice"), (429, "rate_limited_requests", "alice"),
        (401, "invalid_api_key", ""), (401, "invalid_api_key", ""),
    ]  # fmt: skip
    assert [line["request_id"] for line in found[:3]] == ["mine"] * 3
    assert [line["traceparent"] for line in found] == [TRACE] * 3 + [None] * 2
    assert found[0]["output_tokens"] > 0
    assert found[1]["ttft_ms"] is not None
    for secret in (KEY, hash_key(KEY), "private"):
        assert secret not in written.getvalue()


async def test_broken_answers_say_who_broke_them(written: io.StringIO) -> None:
    async with MockUpstream() as up, Stack(up.url, log=LOG, retries={"max": 0}) as stack:
        for mock in ({"reset_before_head": True}, {"status": 404}, {"cut_at": 400, "framing": "chunked"}):
            async with RawClient(stack.port) as client:
                await client.ask("POST", PATH, body={**CHAT, "stream": "cut_at" in mock}, mock=mock)
        await stack.settled()
    assert [(line["code"], line["reason"]) for line in lines(written)] == [
        (502, "upstream_error"), (404, "upstream_status"), (200, "upstream_error"),
    ]  # fmt: skip


async def test_nothing_is_written_unless_asked_for(written: io.StringIO) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("POST", PATH, body=CHAT, mock={"status": 500})
    assert lines(written) == []
