"""What a client may send, and what it hears when it sends more."""

from __future__ import annotations

import asyncio
import errno
import resource
from http import HTTPStatus

import pytest

from proxy.compiled import is_active
from proxy.config.model import Config
from proxy.http.descriptors import let_in, needed, raise_limit
from proxy.http.incoming import Limits
from proxy.http.server import ServerLimits
from proxy.upstream.connections import ConnectionPool
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_a_body_of_32_mib_passes() -> None:
    body = b'{"model":"m","messages":[],"x":"%b"}' % (b"y" * (32 * 1024 * 1024 - 100))
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", PATH, body=body, timeout=60)).status == 200
        assert len(up.seen[-1].body) == len(body)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit_is_413_in_json(announced: bool) -> None:
    limits = Limits(max_body_bytes=10_000)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        if announced:
            client.send(request_bytes("POST", PATH, {"Content-Length": "10001"}))
        else:
            client.send(request_bytes("POST", PATH, {"Transfer-Encoding": "chunked"}))
            client.send(b"2711\r\n" + b"x" * 10_001 + b"\r\n")
        answer = await client.answer()
        assert answer.status == 413
        assert answer.json["error"]["code"] == "body_too_large"
        assert answer.header("connection") == "close"
        assert up.seen == []
        await stack.settled()


async def test_an_expected_body_above_the_limit_is_refused_before_it_is_sent() -> None:
    limits = Limits(max_body_bytes=10_000)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, {"Expect": "100-continue", "Content-Length": "20000"}))
        status, _, _ = await client.head()
        assert status == 413


async def test_an_unknown_expectation_is_417() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, {"Expect": "miracles"}, body=CHAT)
        assert answer.status == 417
        assert up.seen == []


async def test_uploads_that_are_not_read_have_no_limit() -> None:
    limits = Limits(max_body_bytes=10_000)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        answer = await client.ask("PUT", "/files/1", body=b"x" * 1_000_000)
        assert answer.status == 200
        assert len(up.seen[-1].body) == 1_000_000


@pytest.mark.parametrize("body", [b"", b"{not json", b"[]", b'"text"', b"null", b'{"model": "m"'])
async def test_malformed_json_is_400_in_the_callers_protocol(body: bytes) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=body)
        assert answer.status == 400
        assert answer.json["error"]["type"] == "invalid_request_error"
        assert up.seen == []
        assert (await client.ask("GET", "/y")).status == 200, "the connection goes on"


async def test_json_nested_100_000_deep_is_the_upstreams_to_judge() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        deep = b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        answer = await client.ask("POST", PATH, body=deep, mock={"echo": True})
        assert answer.body == deep
        assert up.seen[-1].body == deep


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * 20_000), 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"x" * 20_000), 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n%b: 1\r\n\r\n" % (b"x" * 20_000), 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % b"".join(b"X-%d: 1\r\n" % n for n in range(200)), 431),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % b"".join(b"X-%d: %b\r\n" % (n, b"y" * 8000) for n in range(20)),
            431,
        ),
    ],
)
async def test_too_much_header_is_431_in_json(payload: bytes, status: int) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(payload)
        answer = await client.answer()
        assert (answer.status, answer.reason) == (status, HTTPStatus(status).phrase)
        assert answer.header("x-trimtab-reason") == "headers_too_large"
        assert answer.json["error"]
        assert up.seen == []


async def test_a_body_that_does_not_come_is_given_up() -> None:
    limits = Limits(body_timeout_s=0.05)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, {"Content-Length": "100"}) + b"{")
        answer = await client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (400, "slow_body")
        await stack.settled()


async def test_connections_that_send_nothing_are_closed() -> None:
    limits = ServerLimits(keepalive_timeout_s=0.05)
    async with MockUpstream() as up, Stack(up.url, server_limits=limits) as stack:
        async with RawClient(stack.port) as silent, RawClient(stack.port) as slow:
            slow.send(b"GET / HTTP/1.1\r\nHos")
            assert await silent.closed() == b""
            assert await slow.closed() == b""
        assert up.seen == []


async def test_no_route_is_404_that_says_what_there_is_and_is_counted() -> None:
    async with MockUpstream() as up:
        pool = {"name": "p", "upstreams": [up.url], "match": {"paths": ["/v1/*"], "models": ["llama*"]}}
        async with Stack(pools=[pool]) as stack, RawClient(stack.port) as client:
            answer = await client.ask("GET", "/elsewhere")
            assert answer.status == 404
            assert answer.header("x-trimtab-reason") == "no_route"
            assert answer.json["error"] == "No pool serves the path '/elsewhere'. Pools take: /v1/* (p)."
            answer = await client.ask("POST", PATH, body=CHAT)
            assert answer.status == 404
            message = "No pool serves the model 'm'. Pools serve: llama* (p)."
            assert (answer.json["error"]["message"], answer.json["error"]["param"]) == (message, "model")
            assert (await client.ask("GET", "/-/trimtab/healthz")).status == 200
            assert (await client.ask("POST", PATH, body={**CHAT, "model": "llama-3"})).status == 200
            await stack.settled()
            counted = [(obs.pool, route, code) for obs, route, code in stack.counts.finished]
            assert counted == [
                ("", "unknown", 404), ("", "chat.completions", 404), ("p", "chat.completions", 200),
            ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "headers", "shape"),
    [
        ("/v1/unknown", {}, ["error", "message"]),
        ("/v1/unknown", {"anthropic-version": "2023-06-01"}, ["error", "message"]),
        ("/api/unknown", {}, ["error"]),
        ("/v2/unknown", {}, ["error"]),
        ("/v1/messages", {}, ["error", "message"]),
    ],
)
async def test_no_route_speaks_the_protocol_that_the_caller_most_likely_does(
    path: str, headers: dict[str, str], shape: list[str]
) -> None:
    async with MockUpstream() as up:
        pool = {"name": "p", "upstreams": [up.url], "match": {"paths": ["/only"]}}
        async with Stack(pools=[pool]) as stack, RawClient(stack.port) as client:
            found = (await client.ask("POST", path, headers, body=CHAT)).json
            assert (found.get("type") == "error") is (path == "/v1/messages" or bool(headers)), found
            for key in shape:
                found = found[key]
            assert "/only (p)" in found


async def test_pools_are_chosen_by_path_then_model_in_order() -> None:
    async with MockUpstream() as a, MockUpstream() as b, MockUpstream() as c:
        pools = [
            {"name": "small", "upstreams": [a.url], "match": {"models": ["small-*"]}},
            {"name": "emb", "upstreams": [b.url], "match": {"paths": ["*/embeddings"]}},
            {"name": "rest", "upstreams": [c.url]},
        ]
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            await client.ask("POST", PATH, body={**CHAT, "model": "small-1"})
            await client.ask("POST", "/v1/embeddings", body={"model": "e", "input": "x"})
            await client.ask("POST", PATH, body=CHAT)
            assert (len(a.seen), len(b.seen), len(c.seen)) == (1, 1, 1)


async def test_2000_streams_at_once() -> None:
    async with MockUpstream(Behaviour(tokens=3, gap=0.001, gate="go")) as up:
        config = {"connections": {"max": 3000}, "queue": {"max_requests": 3000}}
        async with Stack(
            up.url, **config, setpoints={"max_batch_size": {"initial": 3000, "max": 3000}, "window_ms": 0}
        ) as stack:

            async def one() -> None:
                async with RawClient(stack.port) as client:
                    answer = await client.ask("POST", PATH, body={**CHAT, "stream": True}, timeout=60)
                    assert answer.complete
                    assert answer.body.endswith(b"data: [DONE]\n\n")

            async with asyncio.TaskGroup() as streams:
                for opened in range(100, 2001, 100):  # no more at a time than the listeners' backlogs hold
                    for _ in range(100):
                        streams.create_task(one())
                    await up.until(lambda opened=opened: up.inflight == opened, timeout=60)
                up.open("go")
            await stack.settled()


@pytest.mark.skipif(is_active(), reason="replaces a method, which compiled code does not notice")
@pytest.mark.parametrize("path", [PATH, "/v1/embeddings", "/elsewhere"])
async def test_a_process_that_may_open_no_more_files_says_503_and_blames_no_upstream(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async with (
        MockUpstream() as up,
        Stack(up.url, health={"eject_after": 1}) as stack,
        RawClient(stack.port) as client,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(ConnectionPool, "_connect", full)
            answer = await client.ask("POST", path, body={**CHAT, "input": "x"})
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "out_of_connections")
            assert answer.header("retry-after") == "1"
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] == 0
        assert (await client.ask("POST", path, body={**CHAT, "input": "x"})).status == 200
        await stack.settled()


def test_the_limit_on_open_files_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: made.append(pair))
    assert [raise_limit(wanted) for wanted in (1000, 2000, 10_000)] == [1024, 2000, 4096]
    assert made == [(2000, 4096), (4096, 4096)]
    assert "ulimit -n" in caplog.text
    config = Config.model_validate({"upstreams": ["http://a"], "limits": {"max_connections": 2000}})
    assert 3000 < needed(config) < 3500


def test_no_more_clients_are_let_in_than_leave_descriptors_for_upstreams_and_operators() -> None:
    limits, admin = {"max_connections": 2000}, {"max_connections": 100}
    config = Config.model_validate({"upstreams": ["http://a"], "limits": limits, "admin": admin})
    assert let_in(config, needed(config)) == 2000
    assert let_in(config, resource.RLIM_INFINITY) == 2000
    for limit in (256, 1024, 2048):
        clients = let_in(config, limit)
        assert 1 <= clients < 2000
        assert 2 * clients + 100 <= limit
