"""The admin API over a real socket: what it shows, what it changes, how it refuses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.load import Load
from controller.observation import Observation, Result
from controller.slo import SLO
from proxy.admin.operator import Reloaded
from proxy.admin.server import AdminServer
from proxy.cli.sockets import bind
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator

CHAT = "/admin/v1/pools/chat"


async def problem(api: TestClient, method: str, path: str, status: int, **kwargs: Any) -> dict[str, Any]:
    """Make a request that must be refused with `status`; return the problem document."""
    async with api.request(method, path, **kwargs) as answer:
        assert answer.status == status, await answer.text()
        assert answer.content_type == "application/problem+json"
        body: dict[str, Any] = await answer.json(content_type="application/problem+json")
        assert body["status"] == status
        assert body["title"]
        return body


async def ok(api: TestClient, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
    async with api.request(method, path, **kwargs) as answer:
        assert answer.status == 200, await answer.text()
        body: dict[str, Any] = await answer.json()
        return body


async def test_lists_every_pool(api: TestClient) -> None:
    pools = (await ok(api, "GET", "/admin/v1/pools"))["pools"]
    assert [pool["name"] for pool in pools] == ["chat", "embed"]
    assert pools[0]["slo"] == {"ttft_ms": 500, "tpot_ms": None, "e2e_ms": 10_000, "queue_ms": None, "quantile": 0.99}
    assert pools[0]["setpoints"] == {"max_batch_size": 8, "window_ms": 5.0, "generation": 0}


async def test_shows_one_pool_in_full(api: TestClient, operator: FakeOperator) -> None:
    operator.pools["chat"].current = Load(queued=3, inflight=2, running=(999.0, 999.5), running_batches=(1, 1))
    pool = await ok(api, "GET", CHAT)
    assert (pool["queued"], pool["inflight"]) == (3, 2)
    assert pool["load"]["running"] == [1.0, 0.5]
    assert pool["bounds"]["max_batch_size"] == 64
    assert pool["stats"]["upstreams"] == [{"url": "http://127.0.0.1:8000"}]
    assert pool["live"]["pool"] == "chat"


async def test_unknown_pool_names_the_known_ones(api: TestClient) -> None:
    body = await problem(api, "GET", "/admin/v1/pools/chatt", 404)
    assert body["detail"] == "There is no pool 'chatt'; known pools: chat, embed."
    assert body["errors"][0]["known"] == ["chat", "embed"]


async def test_slo_changes_what_is_named_and_keeps_the_rest(api: TestClient, operator: FakeOperator) -> None:
    pool = await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 250, "e2e_ms": None})
    assert pool["slo"] == {"ttft_ms": 250, "tpot_ms": None, "e2e_ms": None, "queue_ms": None, "quantile": 0.99}
    assert operator.pools["chat"].controller.slo == SLO(ttft_s=0.25)
    assert operator.pools["embed"].controller.slo == SLO()


async def test_new_target_gets_a_bucket_boundary(api: TestClient, operator: FakeOperator) -> None:
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 333})
    assert 'trimtab_time_to_first_token_seconds_bucket{class="default",le="0.333",pool="chat"}' in (
        await (await api.get("/metrics")).text()
    )


async def test_pin_and_unpin(api: TestClient, operator: FakeOperator) -> None:
    pool = await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 4, "window_ms": 0})
    assert pool["pins"] == {"max_batch_size": 4, "window_ms": 0}
    assert pool["setpoints"]["max_batch_size"] == 4
    pool = await ok(api, "PATCH", f"{CHAT}/setpoints", json={"window_ms": None})
    assert pool["pins"] == {"max_batch_size": 4}
    pool = await ok(api, "DELETE", f"{CHAT}/pins")
    assert pool["pins"] == {}


async def test_unpin_one_by_name(api: TestClient) -> None:
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 4, "window_ms": 0})
    pool = await ok(api, "DELETE", f"{CHAT}/pins?name=max_batch_size")
    assert pool["pins"] == {"window_ms": 0}


async def test_law_is_replaced(api: TestClient, operator: FakeOperator) -> None:
    pool = await ok(api, "PUT", f"{CHAT}/law", json={"law": "fixed"})
    assert pool["law"] == "fixed"
    assert operator.pools["chat"].controller.law_name == "fixed"


async def test_decisions_say_who_and_why(api: TestClient) -> None:
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 250}, headers={"X-Trimtab-Actor": "ann@example.test"})
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": 4})
    body = await ok(api, "GET", f"{CHAT}/decisions")
    newest, oldest = body["decisions"][0], body["decisions"][-1]
    assert (oldest["actor"], newest["actor"]) == ("admin:ann@example.test", "admin:api")
    assert newest["id"] > oldest["id"]
    assert all(decision["text"] for decision in body["decisions"])


async def test_decisions_can_be_followed(api: TestClient) -> None:
    for size in (1, 2, 3):
        await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": size})
    first = await ok(api, "GET", f"{CHAT}/decisions?since=0&limit=2")
    rest = await ok(api, "GET", f"{CHAT}/decisions?since={first['last_id']}")
    none = await ok(api, "GET", f"{CHAT}/decisions?since={rest['last_id']}")
    assert [decision["id"] for decision in first["decisions"] + rest["decisions"]] == [1, 2, 3]
    assert none == {"decisions": [], "last_id": 3}


INVALID = [
    ("slo", {"ttft": 5}, "ttft: unknown key; did you mean ttft_ms?"),
    ("slo", {"ttft_ms": 0}, "ttft_ms: got 0; accepted: a number from 0.001 to 86400000 (milliseconds)"),
    ("slo", {"ttft_ms": "5"}, "ttft_ms: got '5'; accepted: a number from 0.001 to 86400000 (milliseconds)"),
    ("slo", {"quantile": 1}, "quantile: got 1; accepted: a number from 0.5 below 1"),
    ("slo", {"quantile": None}, "quantile: got nothing; accepted: a number from 0.5 below 1"),
    ("slo", {"ttft_ms": True}, "ttft_ms: got true; accepted: a number from 0.001 to 86400000 (milliseconds)"),
    (
        "setpoints",
        {"max_batch_size": 65},
        "max_batch_size: got 65; accepted: 1 to 64, the pool's setpoints.max_batch_size",
    ),
    ("setpoints", {"max_batch_size": 1.5}, "max_batch_size: got 1.5; accepted: a whole number from 1 to 65536"),
    ("setpoints", {"window_ms": -1}, "window_ms: got -1; accepted: a number from 0 to 60000 (milliseconds)"),
    ("law", {}, "law: is required: Name of a law."),
    ("law", {"law": "aimd", "options": []}, "options: got a list; accepted: a mapping"),
]


@pytest.mark.parametrize(("what", "body", "detail"), INVALID)
async def test_names_the_field_and_what_it_accepts(
    api: TestClient, operator: FakeOperator, what: str, body: dict[str, Any], detail: str
) -> None:
    method = "PUT" if what == "law" else "PATCH"
    answer = await problem(api, method, f"{CHAT}/{what}", 422, json=body)
    assert answer["detail"] == detail
    assert answer["errors"][0]["field"] == detail.split(":")[0]
    assert len(operator.pools["chat"].controller.decisions) == 0


@pytest.mark.parametrize("least", [5e-324, 1e-9, -0.0])
async def test_a_target_too_small_to_mean_anything_is_refused(api: TestClient, least: float) -> None:
    await problem(api, "PATCH", f"{CHAT}/slo", 422, json={"e2e_ms": least})


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b"[1]", b'{"ttft_ms": NaN}', b'{"ttft_ms": 1e999}', b"[" * 50_000]
)
async def test_a_body_that_is_no_object_is_refused(api: TestClient, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    async with api.patch(f"{CHAT}/slo", data=raw, headers=headers) as answer:
        assert answer.status in (400, 422)
        assert answer.content_type == "application/problem+json"


async def test_a_body_in_another_format_is_refused(api: TestClient) -> None:
    await problem(api, "PATCH", f"{CHAT}/slo", 415, data=b"ttft_ms=5", headers={"Content-Type": "text/plain"})


async def test_a_huge_body_is_refused(api: TestClient) -> None:
    body = json.dumps({"ttft_ms": 5, "x": "y" * 100_000})
    await problem(api, "PATCH", f"{CHAT}/slo", 413, data=body, headers={"Content-Type": "application/json"})


async def test_wrong_method_says_which_are_right(api: TestClient) -> None:
    async with api.post(f"{CHAT}/slo", json={}) as answer:
        assert answer.status == 405
        assert answer.headers["Allow"] == "PATCH"
    await problem(api, "DELETE", CHAT, 405)


async def test_unknown_path_is_a_problem(api: TestClient) -> None:
    await problem(api, "GET", "/admin/v2/pools", 404)


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "limit=-1", "since=-1", "limit=1&limit=2", "limit=" + "9" * 5000, "since=٣"],
)
async def test_bad_query_is_refused(api: TestClient, query: str) -> None:
    body = await problem(api, "GET", f"{CHAT}/decisions?{query}", 422)
    assert "accepted: a whole number from" in body["detail"]


async def test_lost_updates_are_refused(api: TestClient) -> None:
    async with api.get(CHAT) as answer:
        seen = answer.headers["ETag"]
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 400}, headers={"If-Match": seen})
    await problem(api, "PATCH", f"{CHAT}/slo", 412, json={"ttft_ms": 300}, headers={"If-Match": seen})
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 300}, headers={"If-Match": "*"})


async def test_actor_must_be_printable(api: TestClient) -> None:
    await problem(api, "PATCH", f"{CHAT}/slo", 422, json={"ttft_ms": 5}, headers={"X-Trimtab-Actor": "a b"})


async def test_actor_is_checked_even_where_nothing_changes(api: TestClient) -> None:
    async with api.patch("/admin/v1/pools/chat/setpoints", json={}, headers={"X-Trimtab-Actor": "`ICl"}) as answer:
        assert answer.status == 422
        assert "X-Trimtab-Actor" in (await answer.json())["detail"]


async def test_history_is_kept_for_ten_minutes(api: TestClient, operator: FakeOperator) -> None:
    operator.history.start()
    operator.clock.advance(100.0)
    operator.pools["chat"].controller.pin({"max_batch_size": 3}, operator.clock.now(), "admin:ann")
    operator.clock.advance(700.0)
    async with api.get("/admin/v1/pools/chat/history") as answer:
        assert answer.status == 200
        found = await answer.json()
    assert found["now"] - found["at"][0] == pytest.approx(600.0, abs=found["every_s"])
    assert found["now"] - found["at"][-1] < found["every_s"]
    assert set(found["max_batch_size"]) == {3}
    assert found["target_ms"]["ttft"][0] == 500.0
    assert found["target_ms"]["tpot"][0] is None
    sizes = {len(found[key]) for key in ("at", "max_batch_size", "window_ms", "queued", "inflight")}
    sizes |= {len(column) for key in ("target_ms", "p50_ms", "p99_ms") for column in found[key].values()}
    assert sizes == {300}


async def test_history_knows_what_requests_took(api: TestClient, operator: FakeOperator) -> None:
    now = operator.clock.now()
    operator.pools["chat"].controller.observe(Observation("chat", now - 0.25, now, Result.OK, 0, now - 0.2))
    operator.history.start()
    async with api.get("/admin/v1/pools/chat/history") as answer:
        found = await answer.json()
    assert found["p99_ms"]["e2e"] == [pytest.approx(250.0, rel=0.02)]
    assert found["p99_ms"]["ttft"] == [None]


async def test_history_of_a_pool_that_is_gone_is_forgotten(operator: FakeOperator) -> None:
    operator.history.start()
    del operator.pools["embed"]
    operator.clock.advance(3.0)
    assert operator.history.columns("embed")["at"] == []
    operator.history.stop()
    operator.clock.advance(100.0)
    assert len(operator.history.columns("chat")["at"]) == 2


@pytest.mark.parametrize(
    ("head", "detail"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", "longer than 8190 bytes"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX-Y: " + b"x" * 9000 + b"\r\n\r\n", "longer than 8190 bytes"),
        (b"nonsense\r\n\r\n", "The request is not HTTP/1.1"),
    ],
)
async def test_what_cannot_be_read_is_a_problem_too(operator: FakeOperator, head: bytes, detail: str) -> None:
    server = AdminServer(operator, AdminConfig(port=0))
    sock = bind("127.0.0.1", 0, key="admin", flag="--admin-port")
    await server.start(sock)
    try:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(head)
        answer = (await reader.read()).decode()
        writer.close()
    finally:
        await server.stop()
    fields, _, body = answer.partition("\r\n\r\n")
    assert " 400 " in fields.splitlines()[0]
    assert "application/problem+json" in fields
    assert detail in json.loads(body)["detail"]


async def test_config_is_shown_without_secrets(api: TestClient) -> None:
    body = await ok(api, "GET", "/admin/v1/config")
    assert body["generation"] == 1
    assert body["config"]["pools"][0]["upstreams"][0]["api_key"] == "**********"
    assert "sk-hidden" not in json.dumps(body)


async def test_reload_says_what_changed(api: TestClient, operator: FakeOperator) -> None:
    operator.next_reload = Reloaded(7, ("pools[0].slo",), ("listen.port",))
    body = await ok(api, "POST", "/admin/v1/reload")
    assert body == {"generation": 7, "changed": ["pools[0].slo"], "restart_required": ["listen.port"]}


async def test_a_bad_reload_changes_nothing(api: TestClient, operator: FakeOperator) -> None:
    operator.next_reload = ConfigError([Problem("trimtab.yaml:3", "slo.ttft", "unknown key; did you mean ttft_ms?")])
    body = await problem(api, "POST", "/admin/v1/reload", 422)
    assert body["errors"] == [
        {"field": "slo.ttft", "message": "unknown key; did you mean ttft_ms?", "origin": "trimtab.yaml:3"}
    ]
    assert operator.generation == 1


async def test_probes(api: TestClient, operator: FakeOperator) -> None:
    assert await ok(api, "GET", "/healthz") == {"status": "ok"}
    assert await ok(api, "GET", "/readyz") == {"ready": True, "reasons": []}
    operator.reasons = ["draining"]
    async with api.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (503, {"ready": False, "reasons": ["draining"]})


async def test_metrics_in_both_formats(api: TestClient) -> None:
    async with api.get("/metrics") as answer:
        assert answer.content_type == "text/plain"
        assert "trimtab_build_info{" in await answer.text()
    async with api.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as answer:
        assert answer.content_type == "application/openmetrics-text"
        assert (await answer.text()).endswith("# EOF\n")


async def test_head_is_answered_like_get(api: TestClient) -> None:
    async with api.head("/healthz") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
