"""An upstream that restarts: what broke with it is one failure, and who comes meanwhile waits for it."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, Answer, RawClient, request_bytes

PATH = "/v1/chat/completions"
EMBED = {"model": "m", "input": "x"}
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}
WAYS: dict[str, tuple[str, str, Any]] = {
    "gated": ("POST", PATH, CHAT),
    "streamed": ("POST", PATH, {**CHAT, "stream": True}),
    "merged": ("POST", "/v1/embeddings", EMBED),
    "passed by": ("GET", "/v1/models", b""),
    "of unknown meaning": ("POST", "/elsewhere", b"once"),
}


@asynccontextmanager
async def restarting(**config: Any) -> AsyncIterator[tuple[MockUpstream, Stack]]:
    """A proxy in front of an upstream that the test stops and starts again, on the same port."""
    up = await MockUpstream().start()
    try:
        async with Stack(up.url, **config) as stack:
            yield up, stack
            await stack.settled()
    finally:
        await up.stop()


async def ask(stack: Stack, method: str, path: str, body: Any, **more: Any) -> Answer:
    async with RawClient(stack.port) as client:
        return await client.ask(method, path, body=body, **more)


async def held(stack: Stack) -> None:
    async with asyncio.timeout(5):
        while not stack.pool.holding.on:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", WAYS)
async def test_requests_wait_for_the_only_upstream_and_reach_it_once(way: str) -> None:
    async with restarting() as (up, stack):
        assert (await ask(stack, *WAYS[way])).status == 200
        await up.stop()
        waiting = [asyncio.create_task(ask(stack, *WAYS[way])) for _ in range(8)]
        await held(stack)
        later = asyncio.create_task(ask(stack, *WAYS[way]))
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in [*waiting, later])
        up.seen.clear()
        await up.start(up.port)
        answers = await asyncio.gather(*waiting, later)
        assert [(answer.status, answer.complete) for answer in answers] == [(200, True)] * 9
        asked = [seen for seen in up.seen if seen.method == WAYS[way][0]]
        assert len(asked) == 9 or way == "merged"
        assert stack.pool.stats()["upstreams"][0]["state"] == "up"


async def test_streams_cut_by_a_death_are_one_failure_and_the_next_requests_are_answered() -> None:
    async with restarting(health={"eject_after": 2}) as (up, stack):
        clients = [RawClient(stack.port) for _ in range(8)]
        for client in clients:
            await client.__aenter__()
            client.send(request_bytes("POST", PATH, body={**CHAT, "stream": True}, mock={"stall_at": 100}))
        for client in clients:
            assert (await client.head())[0] == 200
        await up.stop()
        for client in clients:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await client.reader.readexactly(1 << 20)
        assert stack.pool.stats()["upstreams"][0]["failures_in_row"] <= 1
        await up.start(up.port)
        for _ in range(8):
            assert (await ask(stack, "POST", PATH, CHAT)).status == 200
        for client in clients:
            await client.__aexit__()


async def test_kept_connections_from_before_cost_nothing() -> None:
    """Neither what can be sent again nor what cannot meets an end that came while nobody looked."""
    async with restarting() as (up, stack):
        await asyncio.gather(*[ask(stack, "POST", PATH, CHAT, mock={"delay": 0.02}) for _ in range(8)])
        assert stack.pool.stats()["upstreams"][0]["connections_idle"] == 8
        await up.stop()
        await up.start(up.port)
        ways = [WAYS["gated"], WAYS["of unknown meaning"], WAYS["merged"], WAYS["passed by"]]
        answers = await asyncio.gather(*[ask(stack, *way) for way in ways * 4])
        assert {answer.status for answer in answers} == {200}


async def test_an_upgrade_waits_as_well() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhi")

    async with MockUpstream() as gone:
        port = gone.port
    async with Stack(f"http://127.0.0.1:{port}") as stack, RawClient(stack.port) as client:
        client.send(request_bytes("GET", "/ws", UPGRADE))
        await held(stack)
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(2) == b"hi"
        server.close()


async def test_a_body_that_is_not_held_waits_unread_and_arrives_whole() -> None:
    async with restarting() as (up, stack), RawClient(stack.port) as client:
        await up.stop()
        client.send(request_bytes("POST", "/up", {"Transfer-Encoding": "chunked"}) + b"5\r\nhello\r\n")
        await held(stack)
        await up.start(up.port)
        client.send(b"5\r\nworld\r\n0\r\n\r\n")
        assert (await client.answer()).status == 200
        assert [seen.body for seen in up.seen if seen.method == "POST"] == [b"helloworld"]


async def test_patience_ends_in_a_refusal_that_says_so() -> None:
    async with restarting(queue={"upstream_wait_ms": 300}) as (up, stack):
        await up.stop()
        answers = await asyncio.gather(*[ask(stack, *way) for way in WAYS.values()])
        for answer in answers:
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "no_upstream")
            assert int(answer.header("retry-after") or 0) >= 1


async def test_nobody_waits_beyond_its_own_deadline() -> None:
    async with restarting() as (up, stack), RawClient(stack.port) as client:
        await up.stop()
        for method, path, body in WAYS.values():
            client.send(request_bytes(method, path, {"x-trimtab-timeout-ms": "100"}, body=body))
            answer = await client.answer(timeout=5.0)
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "no_upstream")


async def test_who_leaves_while_it_waits_is_forgotten() -> None:
    async with restarting() as (up, stack):
        await up.stop()
        for way in ("gated", "merged", "passed by"):
            async with RawClient(stack.port) as client:
                method, path, body = WAYS[way]
                client.send(request_bytes(method, path, body=body))
                await held(stack)
                await asyncio.sleep(0.02)
        await stack.settled()
        assert len(stack.pool.queue) == 0
        await up.start(up.port)
        assert (await ask(stack, "POST", PATH, CHAT)).status == 200
        assert sum(seen.method == "POST" for seen in up.seen) == 1


async def test_no_more_wait_than_may_queue() -> None:
    async with restarting(queue={"max_requests": 2, "upstream_wait_ms": 10_000}) as (up, stack):
        await up.stop()
        first = asyncio.create_task(ask(stack, "POST", PATH, CHAT))
        await held(stack)
        waiting = [first, *(asyncio.create_task(ask(stack, "POST", PATH, CHAT)) for _ in range(3))]
        done, _ = await asyncio.wait(waiting, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 2:
            done, _ = await asyncio.wait(waiting, timeout=0.05)
        assert {(task.result().status, task.result().header("x-trimtab-reason")) for task in done} == {
            (503, "queue_full")
        }
        await up.start(up.port)
        assert sorted([(await task).status for task in waiting]) == [200, 200, 503, 503]


async def test_who_is_more_urgent_goes_first_when_it_comes_back() -> None:
    config = {"setpoints": {"window_ms": 0, "max_batch_size": 1}}
    async with restarting(**config) as (up, stack):
        await up.stop()

        async def classed(name: str) -> Answer:
            async with RawClient(stack.port) as client:
                client.send(request_bytes("POST", PATH, {"x-trimtab-class": name}, body={**CHAT, "user": name}))
                return await client.answer()

        tasks = []
        for name in ("batch", "batch", "interactive"):
            tasks.append(asyncio.create_task(classed(name)))
            await held(stack)
            await asyncio.sleep(0.05)
        await up.start(up.port)
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200] * 3
        assert next(seen.json["user"] for seen in up.seen if seen.method == "POST") == "interactive"


async def test_nobody_is_shed_for_having_waited_for_an_upstream() -> None:
    """The promise could not be kept, and yet the one who waited is served, as going direct would have been."""
    async with restarting(slo={"ttft_ms": 50, "tpot_ms": 60, "e2e_ms": 60_000}) as (up, stack):
        for _ in range(40):
            assert (await ask(stack, "POST", PATH, CHAT)).status == 200
        await up.stop()
        waiting = [asyncio.create_task(ask(stack, "POST", PATH, CHAT, mock={"delay": 0.05})) for _ in range(24)]
        await held(stack)
        waiting += [asyncio.create_task(ask(stack, "POST", PATH, CHAT, mock={"delay": 0.05})) for _ in range(24)]
        await asyncio.sleep(0.3)
        await up.start(up.port)
        assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}


async def test_with_another_upstream_nobody_waits_or_fails() -> None:
    async with restarting() as (up, _), MockUpstream() as other:
        async with Stack(up.url, other.url) as both:
            for way in WAYS.values():
                assert (await ask(both, *way)).status == 200
            await up.stop()
            for way in list(WAYS.values()) * 4:
                assert (await ask(both, *way)).status == 200
            assert both.counts.retries <= 4, "what nobody was asked is no second try"
            assert not both.pool.holding.on
            states = {each["url"]: each["state"] for each in both.pool.stats()["upstreams"]}
            assert states == {up.url: "ejected", other.url: "up"}
            await up.start(up.port)
            async with asyncio.timeout(5):
                while both.pool.stats()["upstreams"][0]["state"] != "up":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await both.settled()


async def test_connections_refused_cost_no_retry_budget() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        gone = [one.url, two.url]
    config = {"retries": {"max": 0, "budget_ratio": 0.0, "budget_min_per_s": 0.0}}
    async with MockUpstream() as good, Stack(*gone, good.url, routing="round-robin", **config) as stack:
        for way in list(WAYS.values()) * 2:
            assert (await ask(stack, *way)).status == 200
        await stack.settled()


async def test_one_that_loads_its_model_is_waited_for_where_its_health_is_asked() -> None:
    health = {"path": "/health", "timeout_ms": 200}
    async with restarting(health=health) as (up, stack):
        await up.stop()
        waiting = asyncio.create_task(ask(stack, "POST", PATH, CHAT))
        await held(stack)
        up.default = Behaviour(status=503)
        await up.start(up.port)
        await up.until(lambda: sum(seen.method == "GET" for seen in up.seen) >= 2)
        assert stack.pool.stats()["upstreams"][0]["state"] == "down"
        assert not waiting.done()
        up.default = Behaviour()
        assert (await waiting).status == 200
        assert sum(seen.method == "POST" for seen in up.seen) == 1


async def test_another_pool_is_asked_before_anybody_waits_and_so_is_the_first_that_comes_back() -> None:
    async with MockUpstream() as one, MockUpstream() as two:
        own, other = one, two
    pools = [
        {"name": "own", "upstreams": [own.url], "fallback": "hosted"},
        {"name": "hosted", "upstreams": [other.url], "match": {"paths": []}},
    ]
    for comes_back in (own, other):
        async with Stack(pools=pools) as stack:
            waiting = [asyncio.create_task(ask(stack, *way)) for way in WAYS.values()]
            async with asyncio.timeout(5):
                while not all(pool.holding.on for pool in stack.pools):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            await comes_back.start(comes_back.port)
            assert {answer.status for answer in await asyncio.gather(*waiting)} == {200}
            for way in WAYS.values():
                assert (await ask(stack, *way)).status == 200
            await stack.settled()
            await comes_back.stop()


async def test_429_is_left_alone_for_as_long_as_it_asked_whatever_comes_of_earlier_calls() -> None:
    async with MockUpstream() as busy, MockUpstream() as other:
        async with Stack(busy.url, other.url, routing="round-robin") as stack:
            early = asyncio.create_task(ask(stack, "POST", PATH, CHAT, mock={"gate": "go"}))
            await busy.until(lambda: len(busy.seen) == 1)
            await ask(stack, "POST", PATH, CHAT)
            busy.default = Behaviour(status=429, retry_after="20")
            assert (await ask(stack, "POST", PATH, CHAT)).status == 200
            assert len(busy.seen) == 2
            busy.default = Behaviour()
            busy.open("go")
            assert (await early).status == 200
            for _ in range(6):
                assert (await ask(stack, "POST", PATH, CHAT)).status == 200
            assert len(busy.seen) == 2
            await stack.settled()
