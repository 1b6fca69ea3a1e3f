"""A client that leaves is noticed at once, wherever its request is, and nothing stays behind."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from controller.observation import Result
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "chat-stream": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "completions": ("/v1/completions", {"model": "m", "prompt": "x"}),
    "completions-stream": ("/v1/completions", {"model": "m", "prompt": "x", "stream": True}),
    "responses": ("/v1/responses", {"model": "m", "input": "x"}),
    "embeddings": ("/v1/embeddings", {"model": "m", "input": "x"}),
    "relay": ("/anything", {}),
}
AT_ONCE_S = 0.1


async def gone(client: RawClient, up: MockUpstream, index: int = -1) -> float:
    """Let the client leave and return how long the upstream took to hear of it."""
    left = time.monotonic()
    client.abort()
    await up.until(lambda: up.seen[index].aborted_at is not None)
    return (up.seen[index].aborted_at or 0.0) - left


@pytest.mark.parametrize("route", ROUTES)
async def test_waiting_for_headers(route: str) -> None:
    path, body = ROUTES[route]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", path, body=body, mock={"hang": True}))
        await up.until(lambda: bool(up.seen and up.seen[-1].body))
        assert await gone(client, up) < AT_ONCE_S
        await stack.settled()
        assert [obs.result for obs, _, _ in stack.counts.finished] == [Result.CANCELLED]
        assert stack.counts.finished[0][2] == 499


@pytest.mark.parametrize("route", ["chat-stream", "relay"])
async def test_streaming(route: str) -> None:
    path, body = ROUTES["chat-stream"]
    if route == "relay":
        path = "/other/chat/completions"
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", path, body=body, mock={"tokens": 10_000, "gap": 0.005}))
        await client.head()
        await client.piece()
        assert await gone(client, up) < AT_ONCE_S
        await stack.settled()


@pytest.mark.parametrize("route", ["chat-stream"])
async def test_streaming_while_the_upstream_is_silent(route: str) -> None:
    path, body = ROUTES[route]
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", path, body=body, mock={"tokens": 9, "stall_at": 400}))
        await client.head()
        await client.piece()
        assert await gone(client, up) < AT_ONCE_S
        await stack.settled()


@pytest.mark.parametrize("route", [r for r in ROUTES if r not in ("relay", "embeddings")])
async def test_queued_at_the_gate(route: str) -> None:
    path, body = ROUTES[route]
    config = {"setpoints": {"max_batch_size": 1, "window_ms": 0}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack:
        async with RawClient(stack.port) as first, RawClient(stack.port) as second:
            first.send(request_bytes("POST", "/v1/chat/completions", body=CHAT, mock={"gate": "go"}))
            await up.until(lambda: len(up.seen) == 1)
            second.send(request_bytes("POST", path, body=body))
            await queued(stack, 1)
            second.abort()
            await queued(stack, 0)
            up.open("go")
            assert (await first.answer()).status == 200
        await stack.settled()
        assert len(up.seen) == 1, "the one that left was never sent"


async def test_queued_for_a_merged_call() -> None:
    config = {"setpoints": {"max_batch_size": 8, "window_ms": 0}, "depth": 1}
    async with MockUpstream() as up, Stack(up.url, profile="openai", **config) as stack:
        path, body = ROUTES["embeddings"]
        async with RawClient(stack.port) as first, RawClient(stack.port) as second, RawClient(stack.port) as third:
            first.send(request_bytes("POST", path, body=body, mock={"gate": "go"}))
            await up.until(lambda: len(up.seen) == 1)
            second.send(request_bytes("POST", path, body={"model": "m", "input": "b2"}, mock={"gate": "go"}))
            third.send(request_bytes("POST", path, body={"model": "m", "input": "c3"}, mock={"gate": "go"}))
            await queued(stack, 2)
            second.abort()
            await queued(stack, 1)
            up.open("go")
            assert (await first.answer()).status == 200
            assert (await third.answer()).json["data"][0]["embedding"][1] == 3.0
        await stack.settled()
        assert up.seen[1].json["input"] == "c3", "only the one that stayed was sent"


async def test_in_the_window() -> None:
    config = {"setpoints": {"max_batch_size": 8, "window_ms": {"initial": 5000, "max": 5000}}}
    for route in ("embeddings", "chat"):
        path, body = ROUTES[route]
        async with MockUpstream() as up, Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            client.send(request_bytes("POST", path, body=body))
            await queued(stack, 1)
            client.abort()
            await queued(stack, 0)
            await stack.settled()
            assert up.seen == []


async def test_a_member_that_leaves_during_the_call_costs_the_others_nothing() -> None:
    config = {"setpoints": {"max_batch_size": 2, "window_ms": {"initial": 5000, "max": 5000}}}
    path, _ = ROUTES["embeddings"]
    async with MockUpstream(Behaviour(gate="go")) as up, Stack(up.url, profile="openai", **config) as stack:
        async with RawClient(stack.port) as leaver, RawClient(stack.port) as stayer:
            leaver.send(request_bytes("POST", path, body={"model": "m", "input": "a1"}))
            stayer.send(request_bytes("POST", path, body={"model": "m", "input": "b22"}))
            await up.until(lambda: bool(up.seen and up.seen[0].body))
            leaver.abort()
            await asyncio.sleep(0.02)
            assert up.seen[0].aborted_at is None
            up.open("go")
            assert (await stayer.answer()).json["data"][0]["embedding"][1] == 22.0
        await stack.settled()


async def test_a_merged_call_that_everybody_left_is_given_up() -> None:
    config = {"setpoints": {"max_batch_size": 2, "window_ms": {"initial": 5000, "max": 5000}}}
    path, _ = ROUTES["embeddings"]
    async with MockUpstream(Behaviour(hang=True)) as up, Stack(up.url, profile="openai", **config) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as other:
            one.send(request_bytes("POST", path, body={"model": "m", "input": "a1"}))
            other.send(request_bytes("POST", path, body={"model": "m", "input": "b22"}))
            await up.until(lambda: bool(up.seen and up.seen[0].body))
            one.abort()
            assert await gone(other, up, 0) < AT_ONCE_S
        await stack.settled()


async def test_connecting() -> None:
    import socket

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    async with Stack(f"http://127.0.0.1:{listener.getsockname()[1]}", timeouts={"connect_ms": 60_000}) as stack:
        async with RawClient(stack.port) as client:
            client.send(request_bytes("POST", "/v1/chat/completions", body=CHAT))
            async with asyncio.timeout(5):
                while not stack.pool.ledger.leases:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            client.abort()
            await stack.settled(timeout=1.0)
    for sock in (*fillers, listener):
        sock.close()


async def test_while_sending_an_upload() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", "/up", {"Content-Length": "1000000"}) + b"x" * 1000)
        await up.until(lambda: len(up.seen) == 1)
        client.abort()
        await up.until(lambda: up.open_connections == 0)
        assert up.seen[0].body == b"", "half a body was never taken for a whole one"
        await stack.settled()


async def test_a_client_that_closes_its_half_and_still_listens_counts_as_gone() -> None:
    """Nothing tells the two apart on HTTP/1.1, and a caller that died looks the same."""
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", "/v1/chat/completions", body=CHAT, mock={"hang": True}))
        await up.until(lambda: bool(up.seen and up.seen[-1].body))
        client.writer.write_eof()
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()


async def queued(stack: Stack, count: int) -> None:
    """Wait until `count` requests are queued."""
    async with asyncio.timeout(5):
        while len(stack.pool.queue) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_stays_behind_after_200_clients_that_leave_at_random(seed: int) -> None:
    rng = random.Random(seed)
    config = {
        "setpoints": {"max_batch_size": 8, "window_ms": {"initial": 2, "max": 100}},
        "queue": {"max_requests": 500},
    }
    async with MockUpstream(Behaviour(delay=0.004, gap=0.002, tokens=8)) as up, Stack(up.url, **config) as stack:

        async def visitor(number: int) -> None:
            path, body = ROUTES[rng.choice(list(ROUTES))]
            await asyncio.sleep(rng.random() * 0.2)
            async with RawClient(stack.port) as client:
                client.send(request_bytes("POST", path, body=body))
                if rng.random() < 0.7:
                    await asyncio.sleep(rng.random() * 0.1)
                    client.abort()
                else:
                    assert (await client.answer(timeout=30)).status == 200, number

        await asyncio.gather(*[visitor(n) for n in range(200)])
        await stack.settled()
        await up.until(lambda: up.inflight == 0)
        assert len(stack.counts.finished) == 200 or len(stack.counts.finished) >= 150
        async with RawClient(stack.port) as client:
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
        await stack.settled()
