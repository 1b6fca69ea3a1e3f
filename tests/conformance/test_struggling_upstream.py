"""Overload is not death; who fails gets less, and comes back."""

# ruff: noqa: SIM117 - the upstream and the proxy in front of it read better one inside the other

from __future__ import annotations

import asyncio

from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import CHAT, RawClient


def look_again(stack: Stack) -> None:
    """Let whoever is passed over be looked at by the next request."""
    for look in stack.pool.group.repute._looks.values():
        look.due = 0.0


async def test_503_from_one_upstream_is_answered_by_the_other() -> None:
    async with MockUpstream(Behaviour(status=503, retry_after="7")) as busy, MockUpstream() as free:
        async with Stack(busy.url, free.url) as stack, RawClient(stack.port) as client:
            for _ in range(20):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(busy.seen) <= 2, "it is left alone for as long as it asked"
            states = {u["url"]: u["state"] for u in stack.pool.stats()["upstreams"]}
            assert states[busy.url] == "overloaded"


async def test_429_of_the_only_upstream_is_relayed_with_its_retry_after() -> None:
    async with MockUpstream(Behaviour(status=429, retry_after="7")) as up:
        async with Stack(up.url) as stack, RawClient(stack.port) as client:
            for _ in range(8):
                answer = await client.ask("POST", "/v1/chat/completions", body=CHAT)
                assert (answer.status, answer.header("retry-after")) == (429, "7")
            assert stack.pool.stats()["upstreams"][0]["state"] == "overloaded"


async def test_an_upstream_that_fails_fast_gets_less() -> None:
    async with MockUpstream(Behaviour(status=500)) as failing, MockUpstream(Behaviour(delay=0.002)) as fine:
        async with Stack(failing.url, fine.url) as stack:

            async def caller() -> None:
                async with RawClient(stack.port) as client:
                    for _ in range(20):
                        await client.ask("POST", "/v1/chat/completions", body=CHAT)

            await asyncio.gather(*[caller() for _ in range(8)])
            assert len(failing.seen) < len(fine.seen) / 2
            await stack.settled()


async def test_an_upstream_that_breaks_off_is_ejected_and_tried_with_one_request_at_a_time() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as bad, MockUpstream() as fine:
        config = {
            "health": {"eject_after": 3, "eject_ms": 60_000},
            "retries": {"budget_min_per_s": 100.0, "on": ["connect", "broken"]},
            "routing": "round-robin",
        }
        async with Stack(bad.url, fine.url, **config) as stack, RawClient(stack.port) as client:
            for _ in range(30):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(bad.seen) == 2, "after two in a row it is passed over"
            for _ in range(4):
                look_again(stack)
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert len(bad.seen) == 4, "one that ejected it, one trial, and not the next one at once"
            states = {u["url"]: u["state"] for u in stack.pool.stats()["upstreams"]}
            assert states == {bad.url: "ejected", fine.url: "up"}
            await stack.settled()


async def test_a_trial_that_goes_well_ends_the_ejection() -> None:
    async with MockUpstream(Behaviour(reset_before_head=True)) as bad, MockUpstream() as fine:
        config = {
            "health": {"eject_after": 3, "eject_ms": 100},
            "retries": {"budget_min_per_s": 100.0, "on": ["connect", "broken"]},
            "routing": "round-robin",
        }
        async with Stack(bad.url, fine.url, **config) as stack, RawClient(stack.port) as client:
            while stack.pool.stats()["upstreams"][0]["state"] != "ejected":
                look_again(stack)
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            bad.default = Behaviour()
            async with asyncio.timeout(5):
                while stack.pool.stats()["upstreams"][0]["state"] != "up":
                    look_again(stack)
                    assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
                    await asyncio.sleep(0.01)
            await stack.settled()


async def test_the_only_upstream_is_asked_whatever_it_did() -> None:
    """Ejection would only turn its failures, and its recovery, into refusals of ours."""
    async with MockUpstream(Behaviour(reset_before_head=True)) as up:
        config = {"health": {"eject_after": 3, "eject_ms": 60_000}, "retries": {"max": 0}}
        async with Stack(up.url, **config) as stack, RawClient(stack.port) as client:
            for _ in range(6):
                assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 502
            assert len(up.seen) == 6
            assert stack.pool.stats()["upstreams"][0]["state"] == "ejected"
            up.default = Behaviour()
            assert (await client.ask("POST", "/v1/chat/completions", body=CHAT)).status == 200
            assert stack.pool.stats()["upstreams"][0]["state"] == "up"
            await stack.settled()
