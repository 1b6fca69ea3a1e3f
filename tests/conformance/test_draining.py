"""Going away without dropping anybody, and who is told what meanwhile."""

from __future__ import annotations

import asyncio

from tests.support.mock_upstream import MockUpstream, chat_stream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


async def test_probes_answer_on_the_data_port() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        assert (await client.ask("GET", "/-/trimtab/healthz")).body == b"ok\n"
        assert (await client.ask("GET", "/-/trimtab/readyz")).status == 200
        assert (await client.ask("HEAD", "/-/trimtab/readyz")).status == 200
        assert up.seen == []
        assert stack.counts.finished == [], "probes are not traffic"


async def test_readiness_flips_first_and_the_grace_still_serves() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        drain = asyncio.create_task(stack.lifecycle.drain(grace_s=30.0, cap_s=5.0))
        await asyncio.sleep(0)
        answer = await client.ask("GET", "/-/trimtab/readyz")
        assert answer.status == 503
        assert answer.header("connection") == "close"
        async with RawClient(stack.port) as other:
            assert (await other.ask("POST", PATH, body=CHAT)).status == 200
            assert await other.closed() == b"", "kept connections end with their next answer"
        async with RawClient(stack.port) as other:
            assert (await other.ask("GET", "/-/trimtab/healthz")).status == 200
        drain.cancel()


async def test_a_stream_under_way_finishes_and_newcomers_are_turned_away() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, body=STREAM, mock={"tokens": 20, "gap": 0.01}))
        await client.head()
        first = await client.piece()
        drain = asyncio.create_task(stack.lifecycle.drain(grace_s=0.0, cap_s=10.0))
        await asyncio.sleep(0)
        async with RawClient(stack.port) as late:
            answer = await late.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "draining")
            assert int(answer.header("retry-after") or 0) >= 1
        body = first
        while piece := await client.piece():
            body += piece
        assert body == b"".join(chat_stream(20))
        assert await drain
        await stack.settled()


async def test_a_server_that_accepts_nobody_serves_who_is_connected_until_the_last_request_is_over() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as slow:
        async with RawClient(stack.port) as idle:
            slow.send(request_bytes("POST", PATH, body=STREAM, mock={"tokens": 20, "gap": 0.01}))
            await slow.head()
            stack.server.stop_listening()
            drain = asyncio.create_task(stack.lifecycle.drain(grace_s=0.0, cap_s=10.0, refuse=False))
            await asyncio.sleep(0)
            answer = await idle.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("connection")) == (200, "close")
        while await slow.piece():
            pass
        assert await drain
        await stack.settled()


async def test_the_cap_ends_what_does_not_finish() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", PATH, body=STREAM, mock={"tokens": 9, "stall_at": 400}))
        await client.head()
        await client.piece()
        assert not await stack.lifecycle.drain(grace_s=0.0, cap_s=0.05)
        await stack.server.stop()
        await client.closed()
        await up.until(lambda: up.seen[-1].aborted_at is not None)
        await stack.settled()


async def test_an_idle_proxy_is_gone_at_once() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        assert await stack.lifecycle.drain(grace_s=0.0, cap_s=60.0)


async def test_draining_a_pool_releases_whoever_waits_for_company() -> None:
    config = {"setpoints": {"max_batch_size": 8, "window_ms": {"initial": 60_000, "max": 60_000}}}
    async with MockUpstream() as up, Stack(up.url, **config) as stack, RawClient(stack.port) as client:
        client.send(request_bytes("POST", "/v1/embeddings", body={"model": "m", "input": "a1"}))
        async with asyncio.timeout(5):
            while len(stack.pool.queue) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        stack.pool.drain()
        assert (await client.answer()).status == 200
        assert stack.counts.batches == [(1, "drain")]
        await stack.settled()


async def test_who_is_cut_off_hears_that_we_go_and_not_that_the_upstream_failed() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack:
        async with RawClient(stack.port) as reading, RawClient(stack.port) as waiting:
            reading.send(request_bytes("POST", PATH, body=STREAM, mock={"gap": 30}))
            await reading.head()
            await reading.piece()
            waiting.send(request_bytes("POST", PATH, body=CHAT, mock={"hang": True}))
            while len(up.seen) < 2:  # noqa: ASYNC110 - the upstream tells nobody
                await asyncio.sleep(0.001)
            stack.lifecycle.cut = True
            stack.pool.abort()
            answer = await waiting.answer()
            assert (answer.status, answer.header("x-trimtab-reason")) == (503, "draining")
            assert answer.header("retry-after") is not None
            rest = await reading.closed()
            assert b"shutting down" in rest
            assert b"inference server failed" not in rest
            assert len(up.seen) == 2, "what we cut off is not asked for again"
        await stack.settled()
