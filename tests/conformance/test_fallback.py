"""Another pool takes what one cannot: when, and when not."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.config.model import Config
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient, request_bytes

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ONE_SLOT = {"max_batch_size": {"initial": 1, "max": 1}, "window_ms": 0}


RETRIES = {"max": 0, "on": ["connect", "overload", "refusal", "failure", "broken"]}


def pools(first: MockUpstream, second: MockUpstream, **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": "own", "upstreams": [first.url], "fallback": "hosted", "retries": RETRIES, **more},
        {"name": "hosted", "upstreams": [{"url": second.url, "model": "big"}], "match": {"paths": []}},
    ]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"status": 503}, "overload"),
        ({"status": 429, "retry_after": "30"}, "overload"),
        ({"reset_before_head": True}, "failure"),
        ({"garbage": True}, "failure"),
    ],
)
async def test_what_fails_before_a_byte_is_answered_by_the_other_pool(fault: dict[str, Any], cause: str) -> None:
    async with MockUpstream(Behaviour(**fault)) as bad, MockUpstream() as good:
        async with Stack(pools=pools(bad, good)) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", PATH, body=CHAT)
            assert answer.status == 200
            assert good.seen[-1].json["model"] == "big", "the other pool's upstream has its own name for the model"
            assert stack.counts.fallbacks == [("own", "hosted", cause)]
            observed = [(obs.pool, code) for obs, _, code in stack.counts.finished]
            assert observed == [("hosted", 200)], "one request, one observation, where it was served"
            await stack.settled()


async def test_a_pool_without_anybody_left_hands_on() -> None:
    async with MockUpstream() as gone:
        dead = gone
    async with MockUpstream() as good:
        async with Stack(pools=pools(dead, good)) as stack, RawClient(stack.port) as client:
            for path, body in (
                (PATH, CHAT),
                ("/elsewhere", {"x": 1}),
                ("/v1/embeddings", {"model": "m", "input": "x"}),
            ):
                answer = await client.ask("POST", path, body=body)
                assert answer.status == 200
            assert good.seen[1].json == {"x": 1}, "also what is only passed through, with its body"
            for endpoint in stack.pools[0].group.endpoints:
                endpoint.draining = True
            assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            assert {cause for _, _, cause in stack.counts.fallbacks} == {"no_upstream"}
            await stack.settled()


async def test_a_full_queue_hands_on() -> None:
    async with MockUpstream() as busy, MockUpstream() as good:
        config = pools(busy, good, setpoints=ONE_SLOT, queue={"max_requests": 1})
        async with Stack(pools=config) as stack:
            clients = [RawClient(stack.port) for _ in range(3)]
            for client in clients:
                await client.__aenter__()
            first = asyncio.create_task(clients[0].ask("POST", PATH, body=CHAT, mock={"gate": "go"}))
            await busy.until(lambda: len(busy.seen) == 1)
            second = asyncio.create_task(clients[1].ask("POST", PATH, body=CHAT))
            async with asyncio.timeout(5):
                while not len(stack.pools[0].queue):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert (await clients[2].ask("POST", PATH, body=CHAT)).status == 200
            assert len(good.seen) == 1
            busy.open("go")
            assert [(await first).status, (await second).status] == [200, 200]
            assert stack.counts.fallbacks == [("own", "hosted", "overload")]
            assert stack.counts.sheds == [], "nobody was turned away"
            for client in clients:
                await client.__aexit__()
            await stack.settled()


@pytest.mark.parametrize("path", ["/v1/embeddings", PATH])
async def test_merged_and_gated_calls_hand_on_alike(path: str) -> None:
    body = {"model": "m", "input": "x"} if path.endswith("embeddings") else CHAT
    async with MockUpstream(Behaviour(status=503)) as bad, MockUpstream() as good:
        async with Stack(pools=pools(bad, good)) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", path, body=body)).status == 200
            await stack.settled()


async def test_only_for_the_causes_that_were_asked_for() -> None:
    async with MockUpstream(Behaviour(status=503, retry_after="7")) as bad, MockUpstream() as good:
        config = pools(bad, good)
        config[0]["fallback"] = {"pool": "hosted", "on": ["no_upstream"]}
        async with Stack(pools=config) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("retry-after")) == (503, "7")
            assert good.seen == []


@pytest.mark.parametrize(
    ("path", "mock", "status"),
    [
        (PATH, {"status": 500}, 500),
        (PATH, {"status": 400}, 400),
        (PATH, {"hang": True}, 504),
        ("/elsewhere", {"reset_before_head": True}, 502),
    ],
)
async def test_never_what_is_an_answer_a_timeout_or_unsafe_to_repeat(
    path: str, mock: dict[str, Any], status: int
) -> None:
    async with MockUpstream() as bad, MockUpstream() as good:
        config = pools(bad, good, timeouts={"first_byte_ms": 50})
        async with Stack(pools=config) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", path, body=CHAT, mock=mock)).status == status
            assert good.seen == []
            await stack.settled()


async def test_never_after_the_first_byte() -> None:
    async with MockUpstream(Behaviour(cut_at=400)) as bad, MockUpstream() as good:
        async with Stack(pools=pools(bad, good)) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", PATH, body={**CHAT, "stream": True})
            assert answer.status == 200
            assert not answer.complete
            assert good.seen == []
            await stack.settled()


async def test_a_chat_that_was_read_is_not_handed_on_unless_that_is_asked_for() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as bad, MockUpstream() as good:
        config = pools(bad, good, retries={"max": 0})
        async with Stack(pools=config) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", PATH, body=CHAT)).status == 502
            assert good.seen == []
            answer = await client.ask("POST", "/v1/embeddings", body={"model": "m", "input": "x"})
            assert (answer.status, len(good.seen)) == (200, 1), "asking twice for a vector is as good as once"
            await stack.settled()


async def test_when_nobody_can_the_last_one_says_so() -> None:
    async with MockUpstream() as gone:
        pass
    async with MockUpstream(Behaviour(status=503)) as bad:
        async with Stack(pools=pools(bad, gone)) as stack, RawClient(stack.port) as client:
            answer = await client.ask("POST", PATH, body=CHAT)
            assert (answer.status, answer.header("x-trimtab-reason")) == (502, "upstream_error")
            await stack.settled()


async def test_a_caller_is_charged_once() -> None:
    keys = [{"name": "k", "hash": "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
             "limits": {"requests_per_minute": 1, "burst": 2}}]  # fmt: skip
    async with MockUpstream(Behaviour(status=503)) as bad, MockUpstream() as good:
        async with Stack(pools=pools(bad, good), keys=keys) as stack, RawClient(stack.port) as client:
            statuses = []
            for _ in range(3):
                client.send(request_bytes("POST", PATH, {"Authorization": "Bearer secret"}, body=CHAT))
                statuses.append((await client.answer()).status)
            assert statuses == [200, 200, 429]


@pytest.mark.parametrize(
    ("fallbacks", "says"),
    [
        ({"a": "a"}, "circle: a -> a"),
        ({"a": "b", "b": "c", "c": "a"}, "circle: a -> b -> c -> a"),
        ({"a": "d"}, "the fallback of pool 'a' is 'd'; pools are a, b, c"),
    ],
)
def test_circles_and_strangers_are_refused(fallbacks: dict[str, str], says: str) -> None:
    config = [
        {"name": name, "upstreams": ["http://x"], **({"fallback": fallbacks[name]} if name in fallbacks else {})}
        for name in "abc"
    ]
    with pytest.raises(ValueError, match=says):
        Config.model_validate({"pools": config})


def test_a_pool_that_nothing_can_reach_is_refused() -> None:
    config = [
        {"name": "a", "upstreams": ["http://x"]},
        {"name": "b", "upstreams": ["http://y"], "match": {"paths": []}},
    ]
    with pytest.raises(ValueError, match="pool 'b' matches no path and is nobody's fallback"):
        Config.model_validate({"pools": config})
