"""A pool that gates chats and merges embeddings: each way keeps its own count and stands in nobody's way."""

from __future__ import annotations

from contextlib import AsyncExitStack

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
EMBED = {"model": "m", "input": ["a", "b", "c", "d"]}
FOUR = {"setpoints": {"max_batch_size": {"min": 4, "max": 4, "initial": 4}, "window_ms": 0}}


async def clients(within: AsyncExitStack, stack: Stack, count: int) -> list[RawClient]:
    return [await within.enter_async_context(RawClient(stack.port)) for _ in range(count)]


async def test_a_merged_call_in_flight_holds_no_chat_up() -> None:
    async with AsyncExitStack() as within:
        up = await within.enter_async_context(MockUpstream())
        stack = await within.enter_async_context(Stack(up.url, profile="vllm", signals={"enabled": False}, **FOUR))
        lists, *chats = await clients(within, stack, 5)
        lists.send(request_bytes("POST", "/v1/embeddings", body=EMBED, mock={"gate": "embedded"}))
        await up.until(lambda: up.inflight == 1)
        assert stack.counts.batches == [(4, "size")], "it is a merged call, or this shows nothing"
        for chat in chats:
            chat.send(request_bytes("POST", "/v1/chat/completions", body=CHAT, mock={"gate": "told"}))
        await up.until(lambda: up.inflight == 5)
        load = stack.pool.load(0.0)
        assert (load.inflight, load.inflight_calls) == (8, 5)
        up.open("told")
        up.open("embedded")
        for client in (lists, *chats):
            assert (await client.answer()).status == 200
        await stack.settled()


async def test_chats_in_flight_hold_no_merged_call_up() -> None:
    async with AsyncExitStack() as within:
        up = await within.enter_async_context(MockUpstream())
        stack = await within.enter_async_context(Stack(up.url, profile="vllm", signals={"enabled": False}, **FOUR))
        lists, *chats = await clients(within, stack, 6)
        for chat in chats:
            chat.send(request_bytes("POST", "/v1/chat/completions", body=CHAT, mock={"gate": "told"}))
        await up.until(lambda: up.inflight == 4)
        assert len(stack.pool.queue) == 1
        lists.send(request_bytes("POST", "/v1/embeddings", body=EMBED))
        assert (await lists.answer()).status == 200
        assert len(stack.pool.queue) == 1, "the end of a merged call makes no place for a sequence"
        up.open("told")
        for chat in chats:
            assert (await chat.answer()).status == 200
        await stack.settled()


async def test_embeddings_that_wait_are_nobody_ahead_of_a_chat() -> None:
    """And chats in flight are nothing that a merged call waits for."""
    async with AsyncExitStack() as within:
        up = await within.enter_async_context(MockUpstream())
        stack = await within.enter_async_context(
            Stack(up.url, profile="vllm", signals={"enabled": False}, slo={"e2e_ms": 2000}, **FOUR)
        )
        many = await clients(within, stack, 8)
        for index, client in enumerate(many):
            body = {**EMBED, "model": f"m{index}"}
            client.send(request_bytes("POST", "/v1/embeddings", body=body, mock={"gate": "embedded"}))
        await up.until(lambda: up.inflight >= 1)
        while len(stack.pool.queue) + up.inflight < 8:
            await up.until(lambda: True)
        waiting = stack.pool.queue.items
        assert waiting >= 16
        own = stack.pool.gate_load(0.0)
        assert (own.queued, own.inflight, own.inflight_calls) == (0, 0, 0)
        other = stack.pool.merge_load(0.0)
        assert (other.queued, other.inflight) == (waiting, 32 - waiting)
        assert other.queued_tokens == stack.pool.queue.tokens
        up.open("embedded")
        for client in many:
            assert (await client.answer()).status == 200
        await stack.settled()
