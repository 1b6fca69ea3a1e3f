"""Large bodies: they go on as they came, hold up nobody, and all of them together have a bound."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
import gzip

import orjson
import pytest

from proxy.http.incoming import Limits
from proxy.wire.weight import PARSED_BYTES, is_light
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient, request_bytes

PATH = "/v1/chat/completions"
PICTURE = "data:image/png;base64," + "iVBORw0K" * 200_000
CONTENT = [{"image_url": {"url": PICTURE}}]
LARGE = {
    "text": b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"word " * 300_000),
    "picture": orjson.dumps({"model": "m", "messages": [{"role": "user", "content": CONTENT}]}),
    "numbers nobody can hold": b'{"model":"m", "x" : [%b1e9999]}' % (b"18446744073709551616, " * 80_000),
    "empty lists": b'{"messages":[%b[]],"model":"m"}' % (b"[]," * 90_000),
    "names that come twice": b'{%b"model":"m"}' % (b'"model":"other","x":[[]],' * 60_000),
}  # fmt: skip


async def reached(stack: Stack, size: int) -> None:
    """Wait until so many bytes were held at once."""
    while stack.handler.service.held.peak < size:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", LARGE)
async def test_they_go_on_byte_for_byte_and_are_counted_no_longer_than_they_are_there(kind: str) -> None:
    assert not is_light(LARGE[kind])
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", PATH, body=LARGE[kind], timeout=30)).status == 200
        assert up.seen[-1].body == LARGE[kind]
        await stack.settled()
        assert stack.handler.service.held.peak >= len(LARGE[kind])


@pytest.mark.parametrize("kind", LARGE)
async def test_the_model_that_a_large_body_names_chooses_the_pool(kind: str) -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        pools = [
            {"name": "one", "upstreams": [one.url], "match": {"models": ["other"]}},
            {"name": "two", "upstreams": [two.url], "match": {"models": ["m"]}},
        ]
        async with Stack(pools=pools) as stack, RawClient(stack.port) as client:
            clear = kind != "names that come twice"
            answer = await client.ask("POST", PATH, body=LARGE[kind], timeout=30)
            assert answer.status == (200 if clear else 400)
            assert (len(one.seen), len(two.seen)) == (0, int(clear)), "what servers read in two ways goes to none"


async def test_others_are_served_while_a_large_body_is_looked_through() -> None:
    body = b'{"messages":[%b[]],"model":"m"}' % (b"[]," * 1_000_000)
    async with MockUpstream() as up, Stack(up.url) as stack:
        async with RawClient(stack.port) as hostile, RawClient(stack.port) as honest:
            hostile.send(request_bytes("POST", PATH, body=body))
            await reached(stack, len(body))
            for _ in range(5):
                assert (await honest.ask("POST", PATH, body=CHAT)).status == 200
            assert len(up.seen) == 5, "the large one is not through yet"
            assert (await hostile.answer(timeout=60)).status == 200
        await stack.settled()


async def test_a_client_that_leaves_meanwhile_leaves_nothing() -> None:
    body = b'{"messages":[%b[]],"model":"m"}' % (b"[]," * 1_000_000)
    async with MockUpstream() as up, Stack(up.url) as stack:
        async with RawClient(stack.port) as client:
            client.send(request_bytes("POST", PATH, body=body))
            await reached(stack, len(body))
        await stack.settled()
        assert up.seen == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[%b1]' % (b"1," * PARSED_BYTES),
        b'{"messages":[%b1}]' % (b"1," * PARSED_BYTES),
        b'{"messages":"%b' % (b"x" * PARSED_BYTES),
        b"%b" % (b"[" * 2 * PARSED_BYTES),
        b"x" * 2 * PARSED_BYTES,
        b"[%b1]" % (b"1," * PARSED_BYTES),
    ],
)
async def test_what_is_no_json_object_is_400(body: bytes) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        answer = await client.ask("POST", PATH, body=body, timeout=30)
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
        assert up.seen == []
        assert (await client.ask("GET", "/y")).status == 200, "the connection goes on"
        await stack.settled()


async def test_a_compressed_one_is_not_opened() -> None:
    body = gzip.compress(b'{"model":"m","messages":[]}' + b" " * 10_000_000) + b"\0" * PARSED_BYTES
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("POST", PATH, {"Content-Encoding": "gzip"}, body=body, timeout=30)).status == 200
        assert up.seen[-1].body == body


async def test_more_values_than_may_be_are_400() -> None:
    limits = Limits(max_json_values=100_000)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        body = b'{"messages":[%b1]}' % (b"1," * 600_000)
        answer = await client.ask("POST", PATH, body=body, timeout=30)
        assert answer.status == 400
        assert "100000 JSON values" in answer.json["error"]["message"]
        assert up.seen == []


async def test_what_waits_holds_its_bytes_and_no_tree() -> None:
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}] * 1_000})
    async with MockUpstream(Behaviour(gate="go")) as up:
        async with Stack(up.url, setpoints={"window_ms": 0, "max_batch_size": 1}) as stack:
            async with RawClient(stack.port) as one, RawClient(stack.port) as two:
                for client in (one, two):
                    client.send(request_bytes("POST", PATH, body=body))
                await up.until(lambda: up.inflight == 1 and len(stack.pool.queue) == 1)
                (waiting,) = stack.pool.queue._arrivals
                assert waiting.ticket.call.payload is None  # type: ignore[attr-defined]
                assert stack.handler.service.held.now == 2 * len(body)
                up.open("go")
                for client in (one, two):
                    assert (await client.answer()).status == 200
            await stack.settled()


async def test_beyond_what_may_be_held_is_503_until_there_is_room() -> None:
    limits = Limits(max_held_bytes=1_000_000)
    body = orjson.dumps({"model": "m", "messages": [], "x": "y" * 600_000})
    async with MockUpstream(Behaviour(gate="go")) as up, Stack(up.url, limits=limits) as stack:
        async with RawClient(stack.port) as first, RawClient(stack.port) as second:
            first.send(request_bytes("POST", PATH, body=body))
            await up.until(lambda: up.inflight == 1)
            second.send(request_bytes("POST", PATH, body=body))
            answer = await second.answer()
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "memory_full")
            assert answer.header("retry-after") == "1"
            assert stack.counts.sheds == [("default", "memory_full")]
            async with RawClient(stack.port) as small:
                small.send(request_bytes("POST", PATH, body=CHAT))
                await up.until(lambda: up.inflight == 2)
            up.open("go")
            assert (await first.answer()).status == 200
        await stack.settled()
        async with RawClient(stack.port) as third:
            assert (await third.ask("POST", PATH, body=body)).status == 200


async def test_uploads_count_for_what_they_hold_on_the_way() -> None:
    limits = Limits(max_held_bytes=200_000)
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack:
        async with RawClient(stack.port) as first, RawClient(stack.port) as second:
            first.send(request_bytes("PUT", "/files/1", {"Content-Length": "1000000"}) + b"x" * 1_000)
            await reached(stack, 1)
            answer = await second.ask("PUT", "/files/2", {"Content-Length": "1000000"}, body=b"x" * 70_000)
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "memory_full")
            first.send(b"x" * 999_000)
            assert (await first.answer()).status == 200
        await stack.settled()


@pytest.mark.parametrize(("method", "path"), [("POST", PATH), ("POST", "/v1/audio/transcriptions"), ("PUT", "/f")])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_that_trickles_is_given_up_though_each_piece_is_in_time(
    method: str, path: str, chunked: bool
) -> None:
    limits = Limits(body_timeout_s=0.5, min_rate_bytes=1_000)
    framing = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": "100000"}
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        client.send(request_bytes(method, path, framing))

        async def trickle() -> None:
            while True:
                client.send(b"1\r\n \r\n" if chunked else b" ")
                await asyncio.sleep(0.02)

        trickling = asyncio.ensure_future(trickle())
        try:
            answer = await client.answer()
        finally:
            trickling.cancel()
        assert (answer.status, answer.header("x-trimtab-reason")) == (400, "slow_body")
        await stack.settled()


async def test_a_slow_body_that_keeps_the_rate_is_taken() -> None:
    limits = Limits(body_timeout_s=0.2, min_rate_bytes=1_000)
    body = orjson.dumps({"model": "m", "messages": [], "x": "y" * 4_000})
    async with MockUpstream() as up, Stack(up.url, limits=limits) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, {"Content-Length": str(len(body))}))
        for start in range(0, len(body), 200):
            client.send(body[start : start + 200])
            await asyncio.sleep(0.02)
        assert (await client.answer()).status == 200
        assert up.seen[-1].body == body


async def test_an_upload_that_the_upstream_takes_slowly_is_not_the_clients_fault() -> None:
    limits = Limits(body_timeout_s=0.1, min_rate_bytes=1_000_000_000)
    async with MockUpstream(Behaviour(gate="go")) as up, Stack(up.url, limits=limits) as stack:
        async with RawClient(stack.port) as client:
            client.send(request_bytes("PUT", "/files/1", {"Content-Length": "400000"}) + b"x" * 400_000)
            await up.until(lambda: up.inflight == 1)
            await asyncio.sleep(0.3)
            up.open("go")
            assert (await client.answer()).status == 200
