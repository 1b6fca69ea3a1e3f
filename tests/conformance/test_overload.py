"""Refusals at once and in the caller's own protocol; deadlines that cover the queue."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from controller.observation import Result
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient, request_bytes

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def gated(size: int = 1, **more: Any) -> dict[str, Any]:
    return {"setpoints": {"max_batch_size": size, "window_ms": 0}, **more}


async def waiting(stack: Stack, count: int) -> None:
    async with asyncio.timeout(5):
        while len(stack.pool.queue) != count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Busy:
    """A proxy whose only slot is taken until `release`."""

    def __init__(self, *, profile: str = "auto", **config: Any) -> None:
        self.up = MockUpstream()
        self._profile = profile
        self._config = config

    async def __aenter__(self) -> Busy:
        await self.up.start()
        upstream = {"url": self.up.url, "profile": self._profile}
        self.stack = Stack(upstreams=[upstream], signals={"enabled": False}, **gated(**self._config))
        await self.stack.__aenter__()
        self.first = RawClient(self.stack.port)
        await self.first.__aenter__()
        self.first.send(request_bytes("POST", "/v1/chat/completions", body=CHAT, mock={"gate": "go"}))
        await self.up.until(lambda: len(self.up.seen) == 1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()
        await self.first.answer()
        await self.first.__aexit__()
        await self.stack.settled()
        await self.stack.__aexit__()
        await self.up.stop()

    def release(self) -> None:
        self.up.open("go")

    async def ask(self, headers: dict[str, str] | None = None, **kwargs: Any) -> Answer:
        async with RawClient(self.stack.port) as client:
            return await client.ask("POST", "/v1/chat/completions", headers, body=CHAT, **kwargs)


def check_refusal(answer: Answer, status: int, reason: str) -> None:
    assert answer.status == status
    assert answer.header("x-trimtab-reason") == reason
    assert int(answer.header("retry-after") or 0) >= 1
    assert answer.header("x-request-id")
    assert answer.header("content-type") == "application/json"
    assert answer.json["error"]["code"] == reason
    assert answer.json["error"]["message"]


async def test_a_full_queue_refuses_at_once_with_everything_a_client_needs() -> None:
    async with Busy(queue={"max_requests": 2}) as busy:
        clients = [asyncio.create_task(busy.ask()) for _ in range(2)]
        await waiting(busy.stack, 2)
        started = time.monotonic()
        answer = await busy.ask()
        assert time.monotonic() - started < 1.0
        check_refusal(answer, 503, "queue_full")
        assert busy.stack.counts.sheds == [("default", "queue_full")]
        busy.release()
        assert [a.status for a in await asyncio.gather(*clients)] == [200, 200]


async def test_a_class_has_its_own_bound() -> None:
    classes = {"default": {}, "batch": {"max_queued": 1, "slack_ms": 1000}}
    async with Busy(classes=classes) as busy:
        one = asyncio.create_task(busy.ask({"X-Trimtab-Class": "batch"}))
        await waiting(busy.stack, 1)
        check_refusal(await busy.ask({"X-Trimtab-Class": "batch"}), 503, "class_queue_full")
        other = asyncio.create_task(busy.ask())
        await waiting(busy.stack, 2)
        busy.release()
        assert [(await one).status, (await other).status] == [200, 200]


async def test_a_deadline_that_passes_in_the_queue_is_504_without_any_dispatch() -> None:
    async with Busy() as busy:
        answer = await busy.ask({"X-Trimtab-Timeout-Ms": "50"})
        check_refusal(answer, 504, "queue_timeout")
        assert len(busy.up.seen) == 1, "it never reached the upstream"
        obs = busy.stack.counts.finished[-1][0]
        assert obs.result is Result.SHED
        assert obs.dispatched is None


async def test_nobody_is_queued_beyond_the_wait_for_a_first_token_that_is_of_use() -> None:
    async with Busy() as busy:
        check_refusal(await busy.ask({"X-SLO-TTFT-Ms": "40"}), 504, "queue_timeout")


async def test_short_answers_go_first_where_the_policy_says_so_and_no_worker_is_told_an_unproven_length() -> None:
    async with Busy(policy="sjf", profile="trimtab-worker") as busy:
        order: list[int] = []

        async def one(max_tokens: int) -> None:
            async with RawClient(busy.stack.port) as client:
                body = {**CHAT, "max_tokens": max_tokens}
                assert (await client.ask("POST", "/v1/chat/completions", body=body)).status == 200
            order.append(max_tokens)

        tasks = []
        for position, length in enumerate([900, 400, 3], 1):
            tasks.append(asyncio.create_task(one(length)))
            await waiting(busy.stack, position)
        busy.release()
        await asyncio.gather(*tasks)
        assert order[0] == 3
        assert [seen.header("x-trimtab-predicted-tokens") for seen in busy.up.seen] == [None] * 4


async def test_the_longest_wait_is_a_setting() -> None:
    async with Busy(queue={"max_wait_ms": 40}) as busy:
        check_refusal(await busy.ask(), 504, "queue_timeout")


async def test_urgent_classes_go_first() -> None:
    classes = {"default": {}, "batch": {"slack_ms": 60_000}}
    async with Busy(classes=classes) as busy:
        order: list[str] = []

        async def one(name: str, klass: str) -> None:
            assert (await busy.ask({"X-Trimtab-Class": klass})).status == 200
            order.append(name)

        tasks = []
        for position, (name, klass) in enumerate([("b1", "batch"), ("b2", "batch"), ("u1", "default")], 1):
            tasks.append(asyncio.create_task(one(name, klass)))
            await waiting(busy.stack, position)
        busy.release()
        await asyncio.gather(*tasks)
        assert order == ["u1", "b1", "b2"]


async def test_callers_cannot_choose_their_class_where_headers_are_not_trusted() -> None:
    async with MockUpstream() as up, Stack(up.url, trust_headers=False) as stack, RawClient(stack.port) as client:
        headers = {"X-Trimtab-Class": "interactive", "X-Trimtab-Tenant": "vip"}
        await client.ask("POST", "/v1/chat/completions", headers, body=CHAT)
        await stack.settled()
        obs = stack.counts.finished[-1][0]
        assert (obs.klass, obs.tenant) == ("default", "")


async def test_an_unknown_class_is_the_default() -> None:
    async with MockUpstream() as up, Stack(up.url) as stack, RawClient(stack.port) as client:
        await client.ask("POST", "/v1/chat/completions", {"X-Trimtab-Class": "nope"}, body=CHAT)
        await stack.settled()
        assert stack.counts.finished[-1][0].klass == "default"


async def test_queue_time_is_told() -> None:
    async with Busy() as busy:
        task = asyncio.create_task(busy.ask())
        await waiting(busy.stack, 1)
        await asyncio.sleep(0.02)
        busy.release()
        answer = await task
        assert float(answer.header("x-trimtab-queue-ms") or 0.0) >= 20.0


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/whatever"])
async def test_listings_and_foreign_paths_do_not_queue(path: str) -> None:
    async with Busy() as busy, RawClient(busy.stack.port) as client:
        assert (await client.ask("GET", path)).status == 200


async def test_every_request_makes_exactly_one_observation_whatever_becomes_of_it() -> None:
    async with Busy(queue={"max_requests": 1}) as busy:
        queued = asyncio.create_task(busy.ask())
        await waiting(busy.stack, 1)
        await busy.ask()
        busy.release()
        await queued
        await busy.ask(mock={"status": 500})
        await busy.ask(mock={"reset_before_head": True})
        async with RawClient(busy.stack.port) as client:
            await client.ask("POST", "/v1/chat/completions", body=b"{not json")
        await busy.stack.settled()
        results = [(obs.result, code) for obs, _, code in busy.stack.counts.finished]
        assert sorted(results) == sorted(
            [
                (Result.OK, 200),
                (Result.OK, 200),
                (Result.REFUSED, 503),
                (Result.FAILED, 500),
                (Result.FAILED, 502),
                (Result.REFUSED, 400),
            ]
        )


async def test_five_times_too_much_is_refused_quickly_and_the_rest_is_served() -> None:
    """One upstream of 4 slots and 10 ms; 100 callers at once; a queue of 20."""
    async with MockUpstream(Behaviour(delay=0.01)) as up:
        async with Stack(up.url, **gated(4, queue={"max_requests": 20})) as stack:
            slowest = 0.0

            async def caller() -> int:
                nonlocal slowest
                async with RawClient(stack.port) as client:
                    started = time.monotonic()
                    answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
                    if answer.status == 503:
                        check_refusal(answer, 503, "queue_full")
                        slowest = max(slowest, time.monotonic() - started)
                    return answer.status

            statuses = await asyncio.gather(*[caller() for _ in range(100)])
            assert set(statuses) == {200, 503}
            assert statuses.count(200) >= 24
            assert up.max_inflight <= 4
            await stack.settled()
