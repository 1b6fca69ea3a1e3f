"""Taking one upstream out while everything runs: nothing new, what runs is finished, then it says so."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio

import pytest

from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def state(stack: Stack) -> str:
    return str(stack.pool.stats()["upstreams"][0]["state"])


async def test_it_gets_nothing_new_finishes_its_stream_and_comes_back() -> None:
    async with MockUpstream() as leaving, MockUpstream() as staying:
        async with Stack(leaving.url, staying.url, routing={"slow_start_ms": 0}) as stack:
            async with RawClient(stack.port) as one, RawClient(stack.port) as two:
                for endpoint in stack.pool.group.endpoints[1:]:
                    endpoint.draining = True
                one.send(request_bytes("POST", PATH, body={**CHAT, "stream": True}, mock={"gate": "go"}))
                await leaving.until(lambda: leaving.inflight == 1)
                stack.pool.group.endpoints[1].draining = False
                decision = stack.pool.take_out(leaving.url, True, 0.0, "admin:somebody")
                stack.pool.tick(0.0)
                assert (state(stack), stack.pool.taken_out) == ("draining", (leaving.url,))
                for _ in range(6):
                    assert (await two.ask("POST", PATH, body=CHAT)).status == 200
                assert (len(leaving.seen), len(staying.seen)) == (1, 6)
                leaving.open("go")
                answer = await one.answer()
                assert answer.body == b"".join(chat_stream(4))
                await stack.settled()
                stack.pool.tick(1.0)
                assert state(stack) == "drained"
                log = stack.pool.controller.decisions.since(decision.id - 1)
                assert (log[0].rule, log[0].actor, log[0].outcome) == ("admin.drain", "admin:somebody", "it is empty")
                stack.pool.take_out(leaving.url, False, 2.0, "admin:somebody")
                for _ in range(6):
                    await two.ask("POST", PATH, body=CHAT)
                assert len(leaving.seen) > 1


@pytest.mark.parametrize("path", [PATH, "/v1/embeddings", "/v1/models", "/elsewhere"])
async def test_with_nobody_left_requests_are_told_so(path: str) -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        stack.pool.take_out(up.url, True, 0.0, "admin:x")
        body = {**CHAT, "input": "x"} if path.startswith("/v1/") and path != "/v1/models" else b""
        answer = await client.ask("POST" if body else "GET", path, body=body)
        assert (answer.status, answer.header("x-trimtab-reason")) == (503, "no_upstream")
        assert up.seen == []
        await stack.settled()


async def test_a_retry_never_goes_there() -> None:
    async with MockUpstream() as leaving, MockUpstream() as bad:
        async with Stack(bad.url, leaving.url) as stack, RawClient(stack.port) as client:
            stack.pool.take_out(leaving.url, True, 0.0, "admin:x")
            answer = await client.ask("POST", PATH, body=CHAT, mock={"status": 503})
            assert answer.status == 503
            assert leaving.seen == []


async def test_who_waits_while_the_last_one_is_taken_out_is_told() -> None:
    config = {"setpoints": {"max_batch_size": 1, "window_ms": 0}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack:
        async with RawClient(stack.port) as one, RawClient(stack.port) as two:
            first = asyncio.create_task(one.ask("POST", PATH, body=CHAT, mock={"gate": "go"}))
            await up.until(lambda: len(up.seen) == 1)
            second = asyncio.create_task(two.ask("POST", PATH, body=CHAT))
            async with asyncio.timeout(5):
                while not len(stack.pool.queue):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            stack.pool.take_out(up.url, True, 0.0, "admin:x")
            up.open("go")
            assert [(await first).status, (await second).status] == [200, 503]
        await stack.settled()
