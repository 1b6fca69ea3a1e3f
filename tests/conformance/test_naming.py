"""The model, wherever a request names it: chosen by, replaced byte for byte, or refused; never passed by."""

# ruff: noqa: SIM117 - the upstreams and the proxy in front of them read better one inside the other

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

CHAT = "/v1/chat/completions"
LARGE = b'{"x":"' + b"y" * 2_000_000 + b'",'
RENAMED = {
    "first": (b'{"model":"a","messages":[]}', b'{"model":"real/1","messages":[]}'),
    "spaced": (b' {"zz": 1,\n "model" : "a" , "x":2}', b' {"zz": 1,\n "model" : "real/1" , "x":2}'),
    "big numbers": (b'{"seed":18446744073709551616,"model":"a"}', b'{"seed":18446744073709551616,"model":"real/1"}'),
    "NaN": (b'{"x":NaN,"model":"a","y":-Infinity}', b'{"x":NaN,"model":"real/1","y":-Infinity}'),
    "duplicates of others": (b'{"x":1,"x":2,"model":"a"}', b'{"x":1,"x":2,"model":"real/1"}'),
    "nested": (b'{"x":{"model":"b"},"y":[{"model":"c"}],"model":"a"}',
               b'{"x":{"model":"b"},"y":[{"model":"c"}],"model":"real/1"}'),
    "in text": (b'{"messages":[{"content":"\\"model\\":\\"q\\""}],"model":"a"}',
                b'{"messages":[{"content":"\\"model\\":\\"q\\""}],"model":"real/1"}'),
    "escaped key": (b'{"mod\\u0065l":"a","x":"\\ud83d\\ude00"}', b'{"mod\\u0065l":"real/1","x":"\\ud83d\\ude00"}'),
    "byte order mark": (b'\xef\xbb\xbf{"model":"a"}', b'\xef\xbb\xbf{"model":"real/1"}'),
    "deep": (b'{"x":' + b"[" * 3000 + b"]" * 3000 + b',"model":"a"}',
             b'{"x":' + b"[" * 3000 + b"]" * 3000 + b',"model":"real/1"}'),
    "large": (LARGE + b'"model":"a"}', LARGE + b'"model":"real/1"}'),
    "none": (b'{"messages":[]}', b'{"messages":[]}'),
    "null": (b'{"model":null}', b'{"model":null}'),
}  # fmt: skip


@pytest.mark.parametrize(
    "path", [CHAT, "/v1/anything", "/completion", "/v1/chat/completions/", "/generate", "/score"]
)
async def test_only_the_bytes_of_the_model_are_replaced(path: str) -> None:
    async with MockUpstream() as up, Stack(pools=[{"upstreams": [{"url": up.url, "model": "real/1"}]}]) as stack:
        async with RawClient(stack.port) as client:
            for name, (body, wanted) in RENAMED.items():
                answer = await client.ask("POST", path, body=body, mock={"echo": True})
                assert (answer.status, answer.body) == (200, wanted), name


UNCLEAR = {
    "twice": b'{"model":"a","model":"b"}',
    "twice, escaped": b'{"model":"a","mod\\u0065l":"b"}',
    "null and a name": b'{"model":null,"model":"b"}',
    "another spelling": b'{"Model":"b"}',
    "both spellings": b'{"model":"a","MODEL":"b"}',
    "a number": b'{"model":7}',
    "a list": b'{"model":["a"]}',
    "broken before it": b'{"x":[1,"model":"a"',
    "utf-16": '{"model":"a"}'.encode("utf-16-le"),
    "twice in a large one": b'{"model":"a","x":"' + b"y" * 2_000_000 + b'","model":"b"}',
    "another spelling in a large one": b'{"x":"' + b"y" * 2_000_000 + b'","Model":"b"}',
}


@pytest.mark.parametrize("path", [CHAT, "/v1/anything", "/completion", "/generate"])
@pytest.mark.parametrize("rule", ["rename", "match"])
async def test_what_two_servers_could_read_in_two_ways_is_refused_where_it_matters(path: str, rule: str) -> None:
    async with MockUpstream() as up:
        pool: dict[str, Any] = {"upstreams": [{"url": up.url, "model": "real"} if rule == "rename" else up.url]}
        if rule == "match":
            pool["match"] = {"models": ["a*"]}
        async with Stack(pools=[pool]) as stack, RawClient(stack.port) as client:
            for name, body in UNCLEAR.items():
                answer = await client.ask("POST", path, body=body)
                assert answer.status == 400, name
                assert answer.header("x-trimtab-reason") == "bad_request"
            assert up.seen == []


class Two:
    """A pool for models that begin with `gpt`, and one for `whisper`."""

    async def __aenter__(self) -> Two:
        self.gpt, self.whisper = await MockUpstream().start(), await MockUpstream().start()
        self.stack = Stack(
            pools=[
                {"name": "gpt", "match": {"models": ["gpt*"]}, "upstreams": [self.gpt.url]},
                {"name": "audio", "match": {"models": ["whisper*"]}, "upstreams": [self.whisper.url]},
            ]
        )
        await self.stack.__aenter__()
        self.client = await RawClient(self.stack.port).__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.client.__aexit__(*error)
        await self.stack.__aexit__(*error)
        await self.gpt.stop()
        await self.whisper.stop()


def form(model: str, *, last: bool = False, size: int = 100) -> bytes:
    field = f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    file = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + b"\x00\r\n-" * size
        + b"\r\n"
    )
    return (file + field if last else field + file) + b"--b--\r\n"


FORM = {"Content-Type": "multipart/form-data; boundary=b"}
NAMINGS: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "form": ("POST", "/v1/audio/transcriptions", FORM, form("whisper-1")),
    "form, file first": ("POST", "/v1/audio/transcriptions", FORM, form("whisper-1", last=True)),
    "long form": ("POST", "/v1/audio/translations", FORM, form("whisper-1", size=200_000)),
    "long form, file first": ("POST", "/v1/images/edits", FORM, form("whisper-1", last=True, size=200_000)),
    "speech": ("POST", "/v1/audio/speech", {}, b'{"model":"whisper-1","input":"x"}'),
    "gzip": ("POST", CHAT, {"Content-Encoding": "gzip"}, gzip.compress(b'{"model":"whisper-1"}')),
    "deflate": ("POST", "/x", {"Content-Encoding": "deflate"}, zlib.compress(b'{"model":"whisper-1"}')),
    "Azure": ("POST", "/openai/deployments/whisper-1/chat/completions?api-version=1", {}, b'{"messages":[]}'),
    "Azure audio": ("POST", "/openai/deployments/whisper-1/audio/transcriptions", FORM, b"--b--\r\n"),
    "KServe": ("POST", "/v2/models/whisper-1/infer", {}, b'{"inputs":[]}'),
    "KServe metadata": ("GET", "/v2/models/whisper-1", {}, b""),
    "TF Serving": ("POST", "/v1/models/whisper-1:predict", {}, b'{"instances":[1]}'),
    "Gemini": ("POST", "/v1beta/models/whisper-1:generateContent", {}, b"{}"),
    "one model": ("GET", "/v1/models/whisper-1", {}, b""),
    "query": ("GET", "/v1/things?model=whisper-1", {}, b""),
    "form-encoded": ("POST", "/x", {"Content-Type": "application/x-www-form-urlencoded"}, b"a=1&model=whisper-1"),
}


@pytest.mark.parametrize("where", NAMINGS)
async def test_the_model_is_found_wherever_protocols_put_it(where: str) -> None:
    method, path, headers, body = NAMINGS[where]
    async with Two() as two:
        answer = await two.client.ask(method, path, headers, body=body, mock={"echo": bool(body)})
        assert answer.status == 200
        assert [len(two.gpt.seen), len(two.whisper.seen)] == [0, 1]
        assert two.whisper.seen[0].body == body
        assert two.whisper.seen[0].target == path


@pytest.mark.parametrize("where", NAMINGS)
async def test_a_model_that_nobody_serves_is_named_in_the_refusal(where: str) -> None:
    method, path, headers, body = NAMINGS[where]
    path = path.replace("whisper-1", "llama-9")
    coding = headers.get("Content-Encoding")
    plain = gzip.decompress(body) if coding == "gzip" else zlib.decompress(body) if coding else body
    plain = plain.replace(b"whisper-1", b"llama-9")
    body = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain) if coding else plain
    async with Two() as two:
        answer = await two.client.ask(method, path, headers, body=body)
        assert answer.status == 404
        assert b"'llama-9'" in answer.body
        assert two.gpt.seen == two.whisper.seen == []


async def test_a_post_that_names_no_model_goes_nowhere_where_models_decide() -> None:
    async with Two() as two:
        for body, headers in ((b"[1]", {}), (b"\x89PNG", {"Content-Type": "image/png"}), (b"{}", {})):
            answer = await two.client.ask("POST", "/classify", headers, body=body)
            assert answer.status == 404
            assert b"names no model" in answer.body
        brotli = await two.client.ask("POST", CHAT, {"Content-Encoding": "br"}, body=b"\x8b\x02\x80")
        assert brotli.status == 400
        assert two.gpt.seen == two.whisper.seen == []


async def test_two_names_are_refused_and_so_is_a_second_field_behind_a_long_file() -> None:
    async with Two() as two:
        for path, body in (
            ("/v2/models/gpt-4/infer?model=whisper-1", b"{}"),
            ("/openai/deployments/gpt-4/chat/completions", b'{"model":"whisper-1","messages":[]}'),
        ):
            assert (await two.client.ask("POST", path, body=body)).status == 400
        twice = form("gpt-4", size=300_000)[:-7] + form("whisper-1")
        answer = await two.client.ask("POST", "/v1/audio/transcriptions", FORM, body=twice)
        assert answer.status == 400
        assert not any(seen.finished for seen in two.gpt.seen)


async def test_a_websocket_is_routed_by_its_query() -> None:
    async with Two() as two:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        await two.client.ask("GET", "/v1/realtime?model=whisper-1", upgrade)
        assert [len(two.gpt.seen), len(two.whisper.seen)] == [0, 1]


@pytest.mark.parametrize("size", [10, 300_000])
async def test_a_form_and_a_path_are_renamed_too(size: int) -> None:
    async with MockUpstream() as up, Stack(pools=[{"upstreams": [{"url": up.url, "model": "real"}]}]) as stack:
        async with RawClient(stack.port) as client:
            for last in (False, True):
                asked, wanted = form("whisper-1", last=last, size=size), form("real", last=last, size=size)
                answer = await client.ask("POST", "/v1/audio/transcriptions", FORM, body=asked, mock={"echo": True})
                assert answer.body == wanted
            await client.ask("POST", "/openai/deployments/a/embeddings?model=a", body=b'{"input":"x"}')
            assert up.seen[-1].target == "/openai/deployments/real/embeddings?model=real"
            squeezed = gzip.compress(b'{"model":"a"}')
            answer = await client.ask("POST", CHAT, {"Content-Encoding": "gzip"}, body=squeezed)
            assert answer.status == 400


async def test_merged_calls_are_renamed() -> None:
    async with (
        MockUpstream() as up,
        Stack(pools=[{"upstreams": [{"url": up.url, "model": "real"}], "dispatch": "merge"}]) as stack,
    ):
        stack.pool.merge.hold = 2
        async with RawClient(stack.port) as one, RawClient(stack.port) as other:
            asks = [c.ask("POST", "/v1/embeddings", body={"model": "a", "input": "x"}) for c in (one, other)]
            assert {answer.status for answer in await asyncio.gather(*asks)} == {200}
        assert json.loads(up.seen[-1].body)["model"] == "real"
        assert len(json.loads(up.seen[-1].body)["input"]) == 2


async def test_the_list_of_models_is_of_all_pools_with_their_aliases() -> None:
    lists = [json.dumps({"object": "list", "data": [{"id": name, "x": 1} for name in names]})
             for names in (("real-1", "gpt-4o", "other"), ("whisper-1", "gpt-4o"))]  # fmt: skip
    async with MockUpstream() as one, MockUpstream() as two:
        pools = [
            {"name": "a", "match": {"models": ["gpt-*", "best"]}, "upstreams": [{"url": one.url, "model": "real-1"}]},
            {"name": "b", "match": {"models": ["*"]}, "upstreams": [two.url]},
        ]
        one.default, two.default = (type(one.default)(body=text) for text in lists)
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            answer = await client.ask("GET", "/v1/models")
            assert answer.status == 200
            assert [entry["id"] for entry in answer.json["data"]] == ["gpt-4o", "best", "whisper-1"]
            await one.stop()
            answer = await client.ask("GET", "/v1/models")
            assert [entry["id"] for entry in answer.json["data"]] == ["best", "whisper-1"]


async def test_with_one_pool_the_list_is_the_upstreams_byte_for_byte() -> None:
    text = '{"object":"list", "data":[ {"id":"x","more":[1.50]} ]}'
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/v1/models", mock={"body": text})).body == text.encode()
