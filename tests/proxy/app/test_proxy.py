"""The assembled proxy over real sockets: it serves, is steered, reloads and goes away without losing a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from controller.slo import SLO
from proxy.config.errors import ConfigError
from proxy.config.model import Config
from tests.proxy.app.upstream import Upstream

Make = Callable[..., Any]
POOL = "/admin/v1/pools/default"


async def metric(rig: Any, line: str) -> float:
    async with rig.http.get(f"{rig.admin}/metrics") as answer:
        for text in (await answer.text()).splitlines():
            if text.startswith(line + " "):
                return float(text.rsplit(" ", 1)[1])
    raise AssertionError(f"no series {line}")


async def until(true: Callable[[], object]) -> None:
    """Let the loop turn until something has happened."""
    for _ in range(100_000):
        if true():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never happened")


async def test_serves_and_counts(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 30_000})
    assert await rig.said() == "a"
    async with await rig.chat(stream=True) as answer:
        assert (await answer.text()).endswith("data: [DONE]\n\n")
    labels = 'class="default",code="200",outcome="ok",pool="default",route="chat.completions"'
    assert await metric(rig, f"trimtab_requests_total{{{labels}}}") == 2
    assert await metric(rig, 'trimtab_slo_requests_total{pool="default",slo="e2e"}') == 2
    assert await metric(rig, 'trimtab_inflight{pool="default"}') == 0
    assert await metric(rig, 'trimtab_slo_target_seconds{pool="default",slo="e2e"}') == 30
    assert await metric(rig, f'trimtab_upstream_healthy{{pool="default",upstream="{upstream.url}"}}') == 1
    pool = await rig.admin_json("GET", POOL)
    assert pool["live"]["counts"]["ok"] == 2
    assert (pool["queued"], pool["inflight"], pool["stats"]["leases"]) == (0, 0, 0)


async def test_an_unstarted_proxy_is_not_ready(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    await until(lambda: not rig.proxy.unready())
    assert (await rig.admin_json("GET", "/readyz"))["ready"] is True
    await rig.proxy.stop()
    assert rig.proxy.unready() == ["starting"]


async def test_ticks_make_decisions_and_count_them(
    make_rig: Make, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = await make_rig(upstreams=[upstream.url], tick_s=0.05)
    decided = asyncio.Event()
    note = rig.proxy.note

    def noting(decision: Any) -> None:
        note(decision)
        decided.set()

    monkeypatch.setattr(rig.proxy, "note", noting)
    await decided.wait()
    decision = (await rig.admin_json("GET", f"{POOL}/decisions"))["decisions"][-1]
    assert await metric(rig, f'trimtab_decisions_total{{pool="default",rule="{decision["rule"]}"}}') >= 1


async def test_a_failing_law_does_not_stop_serving(
    make_rig: Make, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = await make_rig(upstreams=[upstream.url], tick_s=0.05)
    ticked = asyncio.Event()
    calls = 0

    def broken(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            ticked.set()
        raise RuntimeError("a law with a fault")

    logging.getLogger("trimtab").addHandler(caplog.handler)
    monkeypatch.setattr(rig.proxy.pools["default"].controller, "tick", broken)
    await ticked.wait()
    logging.getLogger("trimtab").removeHandler(caplog.handler)
    assert "the controller of pool default failed" in caplog.text
    assert await rig.said() == "a"


async def test_changes_through_the_admin_api_lose_no_request(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 60_000}, setpoints={"max_batch_size": 4})
    stop = asyncio.Event()
    said: list[str] = []

    async def client() -> None:
        while not stop.is_set():
            said.append(await rig.said())

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for turn in range(10):
        await rig.admin_json("PATCH", f"{POOL}/slo", json={"e2e_ms": 50_000 + turn})
        await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 1 + turn, "window_ms": turn})
        await rig.admin_json("PUT", f"{POOL}/law", json={"law": ("fixed", "aimd")[turn % 2]})
        await rig.admin_json("DELETE", f"{POOL}/pins")
    stop.set()
    await asyncio.gather(*clients)
    assert set(said) == {"a"}


async def test_raising_the_pin_lets_waiting_requests_go_at_once(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url], setpoints={"max_batch_size": 1, "window_ms": 0}, tick_s=60)
    upstream.gate.clear()
    first = asyncio.create_task(rig.said())
    await upstream.entered.wait()
    upstream.entered.clear()
    second = asyncio.create_task(rig.said())
    await until(lambda: rig.proxy.pools["default"].queue.items)
    await rig.admin_json("PATCH", f"{POOL}/setpoints", json={"max_batch_size": 2})
    await upstream.entered.wait()
    upstream.gate.set()
    assert [await first, await second] == ["a", "a"]


async def test_reload_changes_the_promise_in_place(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 5_000})
    pool = rig.proxy.pools["default"]
    rig.reload_to(upstreams=[upstream.url], slo={"e2e_ms": 7_000}, law="fixed")
    done = await rig.admin_json("POST", "/admin/v1/reload")
    assert done == {
        "generation": 2, "changed": ["pools.default.slo", "pools.default.law"], "restart_required": [],
    }  # fmt: skip
    assert rig.proxy.pools["default"] is pool
    assert pool.controller.slo == SLO(e2e_s=7.0)
    assert pool.controller.law_name == "fixed"
    assert [decision.actor for decision in pool.controller.decisions.latest(2)] == ["admin:reload"] * 2


async def test_reload_keeps_what_an_operator_set_meanwhile(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 5_000})
    await rig.admin_json("PATCH", f"{POOL}/slo", json={"e2e_ms": 6_000})
    rig.reload_to(upstreams=[upstream.url], slo={"e2e_ms": 5_000}, queue={"max_requests": 5})
    await rig.admin_json("POST", "/admin/v1/reload")
    assert rig.proxy.pools["default"].controller.slo == SLO(e2e_s=6.0)
    assert rig.proxy.pools["default"].config.queue.max_requests == 5


async def test_requests_finish_on_the_pool_they_started_on(
    make_rig: Make, upstream: Upstream, other: Upstream
) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    upstream.gate.clear()
    async with await rig.chat(stream=True) as streaming:
        rig.reload_to(upstreams=[other.url])
        await rig.admin_json("POST", "/admin/v1/reload")
        assert await rig.said() == "b"
        upstream.gate.set()
        assert (await streaming.text()).endswith("data: [DONE]\n\n")
    assert (upstream.served, other.served) == (1, 1)


async def test_reload_may_add_and_remove_pools(make_rig: Make, upstream: Upstream, other: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    rig.reload_to(pools=[
        {"name": "special", "match": {"models": ["b-*"]}, "upstreams": [other.url]},
        {"name": "default", "upstreams": [upstream.url]},
    ])  # fmt: skip
    await rig.admin_json("POST", "/admin/v1/reload")
    async with await rig.chat(model="b-1") as answer:
        assert (await answer.json())["id"] == "b"
    assert await rig.said() == "a"
    rig.reload_to(upstreams=[upstream.url])
    done = await rig.admin_json("POST", "/admin/v1/reload")
    assert done["changed"] == ["pools.special"]
    assert list(rig.proxy.pools) == ["default"]


async def test_a_reload_that_fails_leaves_the_old_configuration_running(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    before = rig.proxy.config

    def broken() -> Config:
        raise ConfigError([])

    rig.next = broken
    await rig.admin_json("POST", "/admin/v1/reload", status=422)
    assert rig.proxy.config is before
    assert await rig.said() == "a"
    assert await metric(rig, 'trimtab_config_reloads_total{result="failed"}') == 1


async def test_reload_names_what_needs_a_restart(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    rig.reload_to(upstreams=[upstream.url], listen={"port": 1}, log={"level": "warning"})
    done = await rig.admin_json("POST", "/admin/v1/reload")
    assert done["restart_required"] == ["listen.port"]
    assert done["changed"] == ["log.level"]
    assert rig.proxy.config.listen.port != 1


async def test_reloading_in_a_loop_loses_no_request(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    stop = asyncio.Event()

    async def client() -> int:
        count = 0
        while not stop.is_set():
            assert await rig.said() == "a"
            count += 1
        return count

    clients = [asyncio.create_task(client()) for _ in range(4)]
    for turn in range(8):
        rig.reload_to(upstreams=[upstream.url], queue={"max_requests": 100 + turn})
        await rig.proxy.reload()
    stop.set()
    assert sum(await asyncio.gather(*clients)) == upstream.served


async def test_drain_lets_streams_finish_and_turns_newcomers_away(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    upstream.gate.clear()
    async with await rig.chat(stream=True) as streaming:
        draining = asyncio.create_task(rig.proxy.drain())
        await until(lambda: rig.proxy.lifecycle.refusing)
        assert await rig.admin_json("GET", "/readyz", status=503) == {"ready": False, "reasons": ["draining"]}
        async with await rig.chat() as refused:
            assert refused.status == 503
            assert refused.headers["x-trimtab-reason"] == "draining"
            assert int(refused.headers["retry-after"]) >= 1
        upstream.gate.set()
        assert (await streaming.text()).endswith("data: [DONE]\n\n")
    assert await draining is True


async def test_stop_cuts_what_is_left_and_may_be_repeated(make_rig: Make, upstream: Upstream) -> None:
    rig = await make_rig(upstreams=[upstream.url])
    upstream.gate.clear()
    async with await rig.chat(stream=True) as streaming:
        await rig.proxy.stop()
        with pytest.raises(aiohttp.ClientError):
            await streaming.read()
    await rig.proxy.stop()


async def test_a_reload_changes_the_promise_of_one_class(make_rig: Callable[..., Any], upstream: Upstream) -> None:
    classes = {"default": {}, "batch": {"slo": {"e2e_ms": 60_000}}}
    rig = await make_rig(upstreams=[upstream.url], slo={"e2e_ms": 9000}, classes=classes)
    controller = rig.proxy.pools["default"].controller
    assert controller.slo_of("batch").e2e_s == 60.0
    rig.reload_to(
        upstreams=[upstream.url], slo={"e2e_ms": 9000}, classes={"default": {}, "batch": {"slo": {"e2e_ms": 30_000}}}
    )
    await rig.admin_json("POST", "/admin/v1/reload")
    assert rig.proxy.pools["default"].controller.slo_of("batch").e2e_s == 30.0
    assert rig.proxy.pools["default"].controller.slo_of("default").e2e_s == 9.0
