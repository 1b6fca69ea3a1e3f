"""What upstreams say about their own load: read aside, shown with its age, and never in anybody's way."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from proxy.observe.gauges import PoolGauges
from proxy.upstream.reported import Reported
from proxy.upstream.signals import MAX_METRICS_BYTES
from tests.support.mock_upstream import Behaviour, MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PATH = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
SLOWLY = {"interval_ms": 3_600_000, "timeout_ms": 50}


def reported(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = stack.pool.stats()["upstreams"][0]["reported"]
    return found


def vllm(url: str, **more: Any) -> list[dict[str, Any]]:
    return [{"url": url, "profile": "vllm", **more}]


async def test_running_waiting_and_kv_usage_are_shown_with_their_age() -> None:
    async with MockUpstream() as up:
        up.metrics = VLLM
        async with Stack(upstreams=vllm(up.url, api_key="sk-own"), signals=SLOWLY) as stack:
            await stack.pool.signals.round()
            found = reported(stack)
            assert (found["running"], found["waiting"], found["kv_usage"]) == (7.0, 2.0, 0.25)
            assert (found["stale"], found["error"]) == (False, "")
            assert found["age_s"] >= 0.0
            seen = [seen for seen in up.seen if seen.target == "/metrics"]
            assert seen[-1].header("authorization") == "Bearer sk-own"
            registry = CollectorRegistry()
            registry.register(PoolGauges(lambda: stack.pools, stack.pool._clock.now))
            labels = {"pool": "default", "upstream": up.url}
            for name, value in (("running", 7.0), ("waiting", 2.0), ("kv_usage_ratio", 0.25), ("stale", 0.0)):
                assert registry.get_sample_value(f"trimtab_upstream_reported_{name}", labels) == value
            assert registry.get_sample_value("trimtab_upstream_reported_age_seconds", labels) is not None


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"hang": True}, "timeout"),
        ({"status": 404}, "status 404"),
        ({"reset_before_head": True}, "reset"),
        ({"garbage": True}, "protocol"),
        ({"body_size": MAX_METRICS_BYTES + 1}, "too_large"),
        ({"body_size": MAX_METRICS_BYTES + 1, "framing": "chunked"}, "too_large"),
    ],
)
async def test_an_upstream_that_cannot_be_read_is_held_against_nobody(fault: dict[str, Any], says: str) -> None:
    async with MockUpstream(Behaviour(**fault)) as up:
        signals = {"interval_ms": 3_600_000, "timeout_ms": 500 if "body_size" in fault else 50}
        health = {"interval_ms": 3_600_000, "eject_after": 1, "unhealthy_after": 1}
        async with Stack(upstreams=vllm(up.url), signals=signals, health=health) as stack:
            for _ in range(3):
                await stack.pool.signals.round()
            upstream = stack.pool.stats()["upstreams"][0]
            assert upstream["state"] == "up"
            assert upstream["failure_rate"] == 0.0
            assert says in upstream["reported"]["error"]
            assert upstream["reported"]["stale"]
            up.default = Behaviour()
            async with RawClient(stack.port) as client:
                assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            await stack.settled()


async def test_what_they_say_changes_nothing_that_is_done() -> None:
    """Their gauges lag by seconds: our own count of what is in flight decides."""
    async with MockUpstream() as full, MockUpstream() as free:
        full.metrics = VLLM.replace("} 2.0", "} 5000.0").replace("} 0.25", "} 1.0")
        async with Stack(upstreams=vllm(full.url) + vllm(free.url), signals=SLOWLY) as stack:
            await stack.pool.signals.round()
            assert reported(stack)["waiting"] == 5000.0
            before = stack.pool.load(0.0)
            async with RawClient(stack.port) as client:
                for _ in range(6):
                    assert (await client.ask("POST", PATH, body=CHAT)).status == 200
            posts = [sum(seen.method == "POST" for seen in up.seen) for up in (full, free)]
            assert posts == [3, 3]
            assert before.inflight == before.queued == 0


async def test_nothing_is_asked_where_the_profile_names_nothing_or_nobody_wants_it() -> None:
    async with MockUpstream() as up:
        for config in ({"upstreams": [up.url]}, {"upstreams": vllm(up.url), "signals": {"enabled": False}}):
            async with Stack(**config) as stack:  # type: ignore[arg-type]
                await stack.pool.signals.round()
                assert stack.pool.stats()["upstreams"][0]["reported"] is None
        assert up.seen == []


async def test_reading_repeats_by_itself_over_a_connection_of_its_own() -> None:
    async with MockUpstream() as up:
        up.metrics = VLLM
        connections = {"max": 1}
        signals = {"interval_ms": 250}
        async with Stack(upstreams=vllm(up.url), signals=signals, connections=connections) as stack:
            await up.until(lambda: sum(seen.target == "/metrics" for seen in up.seen) >= 3)
            assert stack.pool.group.endpoints[0].connections.open == 0


def test_a_reading_ages_and_goes_stale_after_three_missed_ones() -> None:
    found = Reported(5.0)
    assert found.stale(0.0)
    assert found.stats(0.0)["age_s"] is None
    found.read(found.signals._replace(running=3.0), 100.0)
    found.failed("reset")
    assert [found.stale(now) for now in (100.0, 115.0, 115.1)] == [False, False, True]
    assert found.stats(115.1) == {
        "running": 3.0, "waiting": None, "kv_usage": None, "age_s": 15.1, "stale": True, "error": "reset",
    }  # fmt: skip
