"""Servers that nobody here knows, on paths that others have: nothing refused, nothing changed, everything counted."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import pytest

from proxy.access.keys import hash_key
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

KEY = "sk-the-key-of-alice"
NESTED = b'{"a":' * 1500 + b"1" + b"}" * 1500
BODIES: dict[str, tuple[bytes, str]] = {
    "array": (b"[1, 2.50, 3]", "application/json"),
    "text": (b"write me a poem", "text/plain"),
    "text that claims to be JSON": (b"write me a poem", "application/json"),
    "number": (b"18446744073709551616", "application/json"),
    "multipart": (b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\n\xff\x00\r\n--b--\r\n',
                  "multipart/form-data; boundary=b"),
    "octets": (bytes(range(256)), "application/octet-stream"),
    "msgpack": (b"\x81\xa1a\x01", "application/msgpack"),
    "protobuf": (b"\x08\x96\x01", "application/x-protobuf"),
    "lines": (b'{"a":1}\n{"a":2}\n', "application/x-ndjson"),
    "form": (b"a=1&b=2", "application/x-www-form-urlencoded"),
    "latin-1": ('{"text":"\xe9"}'.encode("latin-1"), "application/json; charset=iso-8859-1"),
    "utf-16": ('{"text":"x"}'.encode("utf-16"), "application/json; charset=utf-16"),
    "byte order mark": (b'\xef\xbb\xbf{"text":"x"}', "application/json"),
    "NaN": (b'{"instances":[NaN,-Infinity]}', "application/json"),
    "huge number": (b'{"text":"x","seed":1e999}', "application/json"),
    "duplicates": (b'{"text":"a","text":"b"}', "application/json"),
    "deep": (NESTED, "application/json"),
    "empty": (b"", "application/json"),
    "wrong types": (b'{"model":7,"inputs":{},"stream":"maybe","n":"x"}', "application/json"),
    "broken": (b'{"text": ', "application/json"),
    "more behind": (b'{"text":"x"} and more', "application/json"),
}  # fmt: skip
PATHS = [
    "/classify", "/score", "/pooling", "/embeddings", "/completions", "/responses", "/chat/completions", "/generate",
    "/generate_stream", "/embed", "/rerank", "/predict", "/", "/invocations", "/v1/models/m:predict",
    "/v2/models/m/infer",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_whatever_a_body_is_it_arrives_and_so_does_its_answer(path: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for name, (body, kind) in BODIES.items():
            answer = await client.ask("POST", path, {"Content-Type": kind}, body=body, mock={"echo": True})
            assert (answer.status, answer.body) == (200, body), name
            assert up.seen[-1].header("content-type") == kind, name
        await stack.settled()
        assert len(stack.counts.finished) == len(BODIES)


CHATS = [
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/api/chat",
]  # fmt: skip
MISTAKES = {"array", "text that claims to be JSON", "number", "empty", "broken", "lines"}


@pytest.mark.parametrize("path", CHATS)
async def test_only_what_every_server_of_a_protocol_refuses_is_refused(path: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for name, (body, kind) in BODIES.items():
            answer = await client.ask("POST", path, {"Content-Type": kind}, body=body, mock={"echo": True})
            if kind == "application/json" and name in MISTAKES:
                assert answer.status == 400, name
                assert answer.header("x-trimtab-reason") == "bad_request"
            else:
                assert (answer.status, answer.body) == (200, body), name


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_compressed_bodies_go_on_as_they_came_however_long(coding: str) -> None:
    body = gzip.compress(b'{"model":"m"}') + bytes(100_000)
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for path in ("/v1/chat/completions", "/classify"):
            answer = await client.ask("POST", path, {"Content-Encoding": coding}, body=body, mock={"echo": True})
            assert answer.body == body
            assert up.seen[-1].header("content-encoding") == coding


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=b", "application/octet-stream"])
async def test_an_upload_to_a_claimed_path_may_be_longer_than_what_is_read(kind: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        stack.handler.service.limits.max_body_bytes = 10_000
        answer = await client.ask("POST", "/classify", {"Content-Type": kind}, body=bytes(200_000))
        assert answer.status == 200
        assert len(up.seen[-1].body) == 200_000
        answer = await client.ask("POST", "/v1/chat/completions", body=b" " * 200_000)
        assert answer.status == 413


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
async def test_other_methods_bring_their_bodies_along(method: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask(method, "/v1/chat/completions", body=b"[1]", mock={"echo": True})
        assert (answer.status, answer.body) == (200, b"[1]")


async def test_what_was_not_read_is_counted_under_its_own_name() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("POST", "/score", body=b"[1]")
        await client.ask("POST", "/classify", {"Content-Type": "image/png"}, body=b"\x89PNG")
        await client.ask("POST", "/invocations", body=b"{}")
        await client.ask("GET", "/ping")
        await stack.settled()
        assert [route for _, route, _ in stack.counts.finished] == ["unread", "unread", "opaque", "relay"]


ODD_WAYS_IN = [
    "/completion", "/infill", "/v1/chat/completions/", "//v1/chat/completions", "/V1/chat/completions",
    "/v1/audio/speech", "/predict", "/invocations",
]  # fmt: skip


@pytest.mark.parametrize("path", ODD_WAYS_IN)
async def test_every_post_takes_a_place_where_places_are_bounded(path: str) -> None:
    bounds: dict[str, Any] = {
        "law": "fixed",
        "setpoints": {"max_batch_size": {"initial": 1, "max": 1}, "window_ms": 0},
    }
    async with MockUpstream() as up, Stack(up.url, **bounds) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as other:
            asks = [c.ask("POST", path, body=b"{}", mock={"delay": 0.2}) for c in (one, other)]
            answers = [asyncio.create_task(ask) for ask in asks]
            await asyncio.sleep(0.1)
            assert len(up.seen) <= 1
            assert {(await answer).status for answer in answers} == {200}
        await stack.settled()
        assert stack.pool.controller.setpoints.max_batch_size == 1
        assert all(obs.generation == 0 and obs.dispatched is not None for obs, _, _ in stack.counts.finished)


async def test_without_a_word_of_configuration_nobody_waits_for_what_is_not_known() -> None:
    async with MockUpstream() as up, Stack(pools=[{"upstreams": [up.url]}]) as stack:
        clients = [RawClient(stack.port) for _ in range(24)]
        for client in clients:
            await client.__aenter__()
        asks = [asyncio.create_task(c.ask("POST", "/poll", body=b"{}", mock={"delay": 0.5})) for c in clients]
        while len(up.seen) < 24:  # noqa: ASYNC110 - an upstream tells nobody whom it has seen
            await asyncio.sleep(0.01)
        assert {(await ask).status for ask in asks} == {200}
        for client in clients:
            await client.__aexit__()


async def test_a_promise_holds_for_what_no_format_claims() -> None:
    async with MockUpstream() as up, Stack(up.url, slo={"e2e_ms": 60_000}) as stack, RawClient(stack.port) as client:
        await client.ask("POST", "/invocations", {"Content-Type": "text/csv"}, body=b"1,2\n")
        await stack.settled()
        obs = stack.counts.finished[-1][0]
        assert obs.e2e_s is not None
        assert stack.counts.batches, "it took a place"


USAGES = {
    "OpenAI": ({"usage": {"prompt_tokens": 30, "completion_tokens": 12}}, 42),
    "Anthropic": ({"usage": {"input_tokens": 30, "output_tokens": 12}}, 42),
    "llama.cpp": ({"content": "x", "tokens_predicted": 12, "tokens_evaluated": 30}, 42),
    "Gemini": ({"usageMetadata": {"promptTokenCount": 30, "candidatesTokenCount": 12}}, 42),
    "Ollama": ({"prompt_eval_count": 30, "eval_count": 12}, 42),
}


@pytest.mark.parametrize("shape", USAGES)
@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions/", "/v1/audio/transcriptions"])
async def test_usage_is_charged_whatever_the_path(shape: str, path: str) -> None:
    answer, tokens = USAGES[shape]
    body = json.dumps(answer)
    keys = [{"name": "alice", "hash": hash_key(KEY), "limits": {"tokens_per_minute": 60, "burst_tokens": 40}}]
    shown = {"Authorization": f"Bearer {KEY}", "Content-Type": "multipart/form-data; boundary=b"}
    async with MockUpstream() as up, Stack(up.url, keys=keys) as stack, RawClient(stack.port) as client:
        first = await client.ask("POST", path, shown, body=b"--b--", mock={"body": body})
        assert first.status == 200
        await stack.settled()
        obs = stack.counts.finished[-1][0]
        assert obs.prompt_tokens + obs.output_tokens == tokens
        second = await client.ask("POST", path, shown, body=b"--b--")
        assert second.status == 429


async def test_usage_is_read_through_gzip() -> None:
    body = gzip.compress(json.dumps({"usage": {"prompt_tokens": 30, "completion_tokens": 12}}).encode())
    mock = {"echo": True, "encoding": "gzip"}
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        for path in ("/completion", "/v1/completions"):
            await client.ask("POST", path, {"Content-Encoding": "gzip"}, body=body, mock=mock)
        await stack.settled()
        assert [(o.prompt_tokens, o.output_tokens) for o, _, _ in stack.counts.finished] == [(30, 12)] * 2
