"""The golden run: hundreds of requests whose fate is known, and every counter equal to the truth."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.proxy.app.test_proxy import until
from tests.support.mock_upstream import MockUpstream

Make = Callable[..., Any]
CHAT, EMBED, COMPLETE = "/v1/chat/completions", "/v1/embeddings", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]

# what is sent, how the upstream behaves, and what must be counted: (route, outcome, code)
FATES: dict[str, tuple[str, dict[str, Any], dict[str, Any], tuple[str, str, str]]] = {
    "chat": (CHAT, {"messages": MESSAGES}, {}, ("chat.completions", "ok", "200")),
    "stream": (CHAT, {"messages": MESSAGES, "stream": True}, {"tokens": 5}, ("chat.completions", "ok", "200")),
    "completion": (COMPLETE, {"prompt": "a"}, {}, ("completions", "ok", "200")),
    "embedding": (EMBED, {"input": ["a", "b"]}, {}, ("embeddings", "ok", "200")),
    "its own error": (CHAT, {"messages": MESSAGES}, {"status": 500}, ("chat.completions", "failed", "500")),
    "not found": (CHAT, {"messages": MESSAGES}, {"status": 404}, ("chat.completions", "failed", "404")),
    "broken": (CHAT, {"messages": MESSAGES}, {"reset_before_head": True}, ("chat.completions", "failed", "502")),
    "too late": (CHAT, {"messages": MESSAGES}, {"hang": True}, ("chat.completions", "timeout", "504")),
    "left": (CHAT, {"messages": MESSAGES}, {"hang": True}, ("chat.completions", "cancelled", "499")),
    "nonsense": (CHAT, {}, {}, ("chat.completions", "refused", "400")),
}
WEIGHTS = (20, 20, 10, 20, 5, 3, 3, 2, 4, 5)
COUNT = 600
TOO_LATE_MS = 3000
"""Long enough for all of them to be on their way to the upstream before, on any machine; they wait side by side."""


async def one(http: aiohttp.ClientSession, url: str, kind: str, upstream: MockUpstream, number: int) -> None:
    path, body, behaviour, (_, _, code) = FATES[kind]
    headers = {"x-mock": json.dumps(behaviour), "x-number": f"{number}", "Content-Type": "application/json"}
    if kind == "too late":
        headers["x-trimtab-timeout-ms"] = f"{TOO_LATE_MS}"
    data = json.dumps({"model": "m", **body}) if body else "{"

    async def ask() -> None:
        async with http.post(url + path, data=data, headers=headers) as answer:
            await answer.read()
            assert str(answer.status) == code, (kind, await answer.text())

    if kind != "left":
        await asyncio.wait_for(ask(), 60)
        return
    asking = asyncio.create_task(ask())
    await upstream.until(lambda: any(seen.header("x-number") == f"{number}" for seen in upstream.seen), timeout=60)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_every_counter_equals_the_truth(make_rig: Make) -> None:
    kinds = random.Random(7).choices(list(FATES), WEIGHTS, k=COUNT)
    truth = Counter(kinds)
    async with MockUpstream() as upstream:
        rig = await make_rig(
            upstreams=[{"url": upstream.url, "profile": "openai"}],
            slo={"e2e_ms": 60_000},
            setpoints={"max_batch_size": 256, "window_ms": 0},
            retries={"max": 0},
            health={"eject_after": 1000, "interval_ms": 86_400_000, "unhealthy_after": 100},
            law_options={"admission": False},
        )
        kinds.sort(key=lambda kind: kind == "too late")
        for start in range(0, COUNT, 40):
            some = enumerate(kinds[start : start + 40], start)
            await asyncio.gather(*(one(rig.http, rig.data, kind, upstream, number) for number, kind in some))
        await until(lambda: rig.proxy.lifecycle.inside == 0)
        async with rig.http.get(f"{rig.admin}/metrics") as answer:
            found = samples(await answer.text())
        pool = await rig.admin_json("GET", "/admin/v1/pools/default")

    def total(name: str, **labels: str) -> float:
        return sum(value for key, have, value in found if key == name and labels.items() <= have.items())

    for counted in {fate[3] for fate in FATES.values()}:
        route, outcome, code = counted
        expected = sum(truth[kind] for kind, fate in FATES.items() if fate[3] == counted)
        assert total("trimtab_requests_total", route=route, outcome=outcome, code=code) == expected, counted
    assert total("trimtab_requests_total") == COUNT, "outcomes add up to requests"
    by_outcome = Counter(dict.fromkeys(("ok", "failed", "timeout", "cancelled", "refused"), 0))
    for kind, number in truth.items():
        by_outcome[FATES[kind][3][1]] += number
    sent = COUNT - by_outcome["refused"]
    assert total("trimtab_queue_duration_seconds_count") == sent
    assert total("trimtab_request_duration_seconds_count") == sent - by_outcome["cancelled"]
    assert total("trimtab_time_to_first_token_seconds_count") == truth["stream"]
    assert total("trimtab_inter_token_latency_seconds_count") == truth["stream"]
    assert total("trimtab_slo_requests_total", slo="e2e") == by_outcome["ok"] + by_outcome["timeout"]
    assert total("trimtab_slo_violations_total", slo="e2e") == by_outcome["timeout"]
    assert total("trimtab_upstream_requests_total", outcome="ok") == by_outcome["ok"]
    assert total("trimtab_retries_total") == 0
    items = sent - truth["embedding"] + 2 * truth["embedding"]
    assert total("trimtab_batch_size_sum") == items
    for gauge in ("inflight", "inflight_calls", "queue_size"):
        assert total(f"trimtab_{gauge}") == 0
    assert pool["stats"]["leases"] == 0
    assert {key: pool["live"]["counts"][key] for key in by_outcome} == by_outcome


def samples(text: str) -> list[tuple[str, dict[str, str], float]]:
    return [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
