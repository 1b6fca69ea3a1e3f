"""Freezing, shadowing, rolling back, and changes that take themselves back."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from controller.laws import LAWS
from controller.slo import SLO
from tests.proxy.admin.operator import FakeOperator
from tests.proxy.admin.test_api import CHAT, ok, problem


async def decisions(api: TestClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ok(api, "GET", f"{CHAT}/decisions"))["decisions"]
    return found


async def test_freeze_and_release(api: TestClient, operator: FakeOperator) -> None:
    assert (await ok(api, "PUT", f"{CHAT}/freeze", json={"frozen": True}))["frozen"] is True
    assert operator.pools["chat"].controller.frozen is True
    assert (await ok(api, "PUT", f"{CHAT}/freeze", json={"frozen": False}))["frozen"] is False


async def test_a_shadow_advises_and_ends(api: TestClient) -> None:
    pool = await ok(api, "PUT", f"{CHAT}/shadow", json={"law": "step"})
    assert (pool["law"], pool["live"]["shadow"]) == ("deadline", "step")
    assert (await ok(api, "PUT", f"{CHAT}/shadow", json={"law": None}))["live"]["shadow"] is None
    await problem(api, "PUT", f"{CHAT}/shadow", 422, json={"law": "wishful"})
    await problem(api, "PUT", f"{CHAT}/shadow", 422, json={})


async def test_an_unknown_law_names_the_known_ones(api: TestClient) -> None:
    body = await problem(api, "PUT", f"{CHAT}/law", 422, json={"law": "wishful"})
    assert body["errors"][0]["field"] == "law"
    assert "aimd" in body["detail"]


async def test_a_law_for_trials_is_let_into_trials_only(api: TestClient) -> None:
    for path in (f"{CHAT}/law", f"{CHAT}/law?for_s=60"):
        body = await problem(api, "PUT", path, 422, json={"law": "bandit"})
        assert body["errors"][0]["field"] == "law"
        assert "only takes part in trials" in body["detail"]
    pool = await ok(api, "PUT", f"{CHAT}/shadow", json={"law": "bandit"})
    assert "bandit" not in pool["laws"]
    listed = (await ok(api, "GET", "/admin/v1/laws"))["laws"]
    assert [law["name"] for law in listed if law["trials_only"]] == ["bandit"]
    await ok(api, "POST", f"{CHAT}/experiment", json={"law": "bandit"})


async def test_a_rolled_back_law_has_its_options_again(api: TestClient, operator: FakeOperator) -> None:
    await ok(api, "PUT", f"{CHAT}/law", json={"law": "aimd", "options": {"least": 20}})
    await ok(api, "PUT", f"{CHAT}/law", json={"law": "fixed"})
    change = (await decisions(api))[0]
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": change["id"]})
    controller = operator.pools["chat"].controller
    assert (controller.law_name, controller.law_options) == ("aimd", {"least": 20})


async def test_rolling_back_a_promise_restores_it(api: TestClient, operator: FakeOperator) -> None:
    before = operator.pools["chat"].controller.slo
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 100, "e2e_ms": None, "quantile": 0.9})
    (change,) = await decisions(api)
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": change["id"]})
    assert operator.pools["chat"].controller.slo == before


async def test_rolling_back_a_law_and_a_freeze(api: TestClient, operator: FakeOperator) -> None:
    controller = operator.pools["chat"].controller
    await ok(api, "PUT", f"{CHAT}/law", json={"law": "fixed"})
    await ok(api, "PUT", f"{CHAT}/freeze", json={"frozen": True})
    freeze, law = await decisions(api)
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": law["id"]})
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": freeze["id"]})
    assert (controller.law_name, controller.frozen) == ("deadline", False)


async def test_rolling_back_a_pin_and_the_release_of_one(api: TestClient, operator: FakeOperator) -> None:
    controller = operator.pools["chat"].controller
    before = controller.setpoints.max_batch_size
    await ok(api, "PATCH", f"{CHAT}/setpoints?for_s=60", json={"max_batch_size": before + 3})
    (pin,) = await decisions(api)
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": pin["id"]})
    assert (controller.setpoints.max_batch_size, dict(controller.pins)) == (before, {})
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": before + 3})
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"max_batch_size": None})
    unpin = (await decisions(api))[0]
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": unpin["id"]})
    assert dict(controller.pins) == {"max_batch_size": before + 3}


async def test_rolling_back_what_is_not_kept_is_refused(api: TestClient) -> None:
    body = await problem(api, "POST", f"{CHAT}/rollback", 422, json={"decision": 99})
    assert body["detail"] == "decision: 99 is not kept any more, or was never made"


async def test_a_class_is_promised_something_else_and_then_the_pools_promise_again(
    api: TestClient, operator: FakeOperator
) -> None:
    controller, before = operator.pools["chat"].controller, operator.pools["chat"].controller.slo
    pool = await ok(api, "PATCH", f"{CHAT}/slo", json={"classes": {"batch": {"e2e_ms": 60_000, "ttft_ms": None}}})
    assert (controller.slo, controller.slo_of("batch")) == (before, SLO(e2e_s=60.0))
    assert pool["classes"]["batch"]["e2e_ms"] == 60_000
    await ok(api, "PATCH", f"{CHAT}/slo", json={"e2e_ms": 5000, "classes": {"batch": {"quantile": 0.9}}})
    assert (controller.slo.e2e_s, controller.slo_of("batch")) == (5.0, SLO(e2e_s=60.0, quantile=0.9))
    pool = await ok(api, "PATCH", f"{CHAT}/slo", json={"classes": {"batch": None}})
    assert (controller.slo_of("batch"), pool["classes"]) == (controller.slo, {})


async def test_a_class_that_is_not_there_is_refused_and_changes_nothing(
    api: TestClient, operator: FakeOperator
) -> None:
    before = operator.pools["chat"].controller.slo
    wrong = {"ttft_ms": 100, "classes": {"vip": {"ttft_ms": 50}}}
    body = await problem(api, "PATCH", f"{CHAT}/slo", 422, json=wrong)
    assert "accepted: the pool's classes: " in body["detail"]
    assert "batch" in body["errors"][0]["known"]
    await problem(api, "PATCH", f"{CHAT}/slo", 422, json={"classes": {"batch": {"e2e_ms": -1}}})
    assert operator.pools["chat"].controller.slo == before


async def test_a_class_changed_meanwhile_is_not_overwritten(api: TestClient) -> None:
    async with api.get(CHAT) as answer:
        seen = {"If-Match": answer.headers["ETag"]}
    await ok(api, "PATCH", f"{CHAT}/slo", json={"classes": {"batch": {"e2e_ms": 60_000}}}, headers=seen)
    await problem(api, "PATCH", f"{CHAT}/slo", 412, json={"classes": {"batch": {"e2e_ms": 30_000}}}, headers=seen)


async def test_rolling_back_a_classes_promise_leaves_the_pools_alone(api: TestClient, operator: FakeOperator) -> None:
    controller, before = operator.pools["chat"].controller, operator.pools["chat"].controller.slo
    await ok(api, "PATCH", f"{CHAT}/slo", json={"classes": {"batch": {"e2e_ms": 60_000}}})
    await ok(api, "PATCH", f"{CHAT}/slo", json={"classes": {"batch": {"e2e_ms": 30_000}}})
    second, first = await decisions(api)
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": second["id"]})
    assert (controller.slo, controller.slo_of("batch").e2e_s) == (before, 60.0)
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": first["id"]})
    assert (controller.slo, dict(controller.class_slos)) == (before, {})


async def test_a_short_promise_of_a_class_takes_itself_back(api: TestClient, operator: FakeOperator) -> None:
    controller, before = operator.pools["chat"].controller, operator.pools["chat"].controller.slo
    await ok(api, "PATCH", f"{CHAT}/slo?for_s=60", json={"classes": {"batch": {"e2e_ms": 60_000}}})
    operator.clock.advance(61)
    assert (controller.slo, dict(controller.class_slos)) == (before, {})
    assert len(await decisions(api)) == 2


async def test_a_short_promise_takes_itself_back(api: TestClient, operator: FakeOperator) -> None:
    controller, before = operator.pools["chat"].controller, operator.pools["chat"].controller.slo
    pool = await ok(api, "PATCH", f"{CHAT}/slo?for_s=60", json={"ttft_ms": 100})
    assert pool["expiring"] == [
        {"kind": "slo", "in_s": 60.0, "back_to": {"ttft_s": 0.5, "tpot_s": None, "e2e_s": 10.0, "queue_s": None,
                                                  "quantile": 0.99, "classes": {}}}
    ]  # fmt: skip
    operator.clock.advance(59.9)
    assert controller.slo.ttft_s == 0.1
    operator.clock.advance(0.2)
    assert controller.slo == before
    assert (await decisions(api))[0]["actor"] == "admin:expiry"
    assert (await ok(api, "GET", CHAT))["expiring"] == []


async def test_of_several_short_changes_the_first_state_comes_back(api: TestClient, operator: FakeOperator) -> None:
    await ok(api, "PATCH", f"{CHAT}/slo?for_s=60", json={"ttft_ms": 100})
    await ok(api, "PATCH", f"{CHAT}/slo?for_s=60", json={"ttft_ms": 50})
    operator.clock.advance(61)
    assert operator.pools["chat"].controller.slo == SLO(ttft_s=0.5, e2e_s=10.0)


async def test_a_lasting_change_replaces_a_short_one(api: TestClient, operator: FakeOperator) -> None:
    await ok(api, "PATCH", f"{CHAT}/slo?for_s=60", json={"ttft_ms": 100})
    await ok(api, "PATCH", f"{CHAT}/slo", json={"ttft_ms": 200})
    operator.clock.advance(61)
    assert operator.pools["chat"].controller.slo.ttft_s == 0.2


async def test_short_pins_give_the_older_ones_back(api: TestClient, operator: FakeOperator) -> None:
    await ok(api, "PATCH", f"{CHAT}/setpoints", json={"window_ms": 3})
    await ok(api, "PATCH", f"{CHAT}/setpoints?for_s=10", json={"window_ms": 9, "max_batch_size": 2})
    operator.clock.advance(11)
    assert operator.pools["chat"].controller.pins == {"window_ms": 3.0}


async def test_a_short_law_and_a_short_freeze(api: TestClient, operator: FakeOperator) -> None:
    controller = operator.pools["chat"].controller
    await ok(api, "PUT", f"{CHAT}/law?for_s=5", json={"law": "fixed"})
    await ok(api, "PUT", f"{CHAT}/freeze?for_s=5", json={"frozen": True})
    operator.clock.advance(6)
    assert (controller.law_name, controller.frozen) == ("deadline", False)


@pytest.mark.parametrize("value", ["0", "-1", "soon", "1e9", "nan", "99999999"])
async def test_for_s_has_a_range(api: TestClient, value: str) -> None:
    body = await problem(api, "PATCH", f"{CHAT}/slo?for_s={value}", 422, json={"ttft_ms": 5})
    assert "accepted: a number from 1 to 2.592e+06 (seconds)" in body["detail"]


async def test_a_refused_change_leaves_no_expiry(api: TestClient, operator: FakeOperator) -> None:
    await problem(api, "PUT", f"{CHAT}/law?for_s=5", 422, json={"law": "wishful"})
    assert operator.clock.pending == 0


async def test_an_experiment_runs_and_ends(api: TestClient, operator: FakeOperator) -> None:
    pool = await ok(api, "POST", f"{CHAT}/experiment", json={"law": "fixed", "block_s": 60, "pairs": 5})
    assert pool["live"]["experiment"] is not None
    body = await problem(api, "POST", f"{CHAT}/experiment", 422, json={"law": "step"})
    assert body["detail"] == "law: an experiment is running; stop it first"
    pool = await ok(api, "DELETE", f"{CHAT}/experiment")
    assert (pool["live"]["experiment"], pool["law"]) == (None, "deadline")
    await problem(api, "DELETE", f"{CHAT}/experiment", 409)


async def test_a_bad_candidate_is_refused(api: TestClient) -> None:
    await problem(api, "POST", f"{CHAT}/experiment", 422, json={"law": "wishful"})
    await problem(api, "POST", f"{CHAT}/experiment", 422, json={"law": "fixed", "block_s": 1})


async def test_an_upstream_is_drained_and_taken_back_in(api: TestClient, operator: FakeOperator) -> None:
    pool = operator.pools["chat"]
    url = pool.config.upstreams[0].url
    before = (await api.get(CHAT)).headers["ETag"]
    await ok(api, "PUT", f"{CHAT}/drain", json={"upstream": url, "draining": True})
    assert pool.taken_out == (url,)
    body = {"upstream": url, "draining": False}
    await problem(api, "PUT", f"{CHAT}/drain", 412, json=body, headers={"If-Match": before})
    (decision,) = await decisions(api)
    assert decision["rule"] == "admin.drain"
    await ok(api, "POST", f"{CHAT}/rollback", json={"decision": decision["id"]})
    assert pool.taken_out == ()


async def test_draining_an_unknown_upstream_names_the_known_ones(api: TestClient) -> None:
    said = await problem(api, "PUT", f"{CHAT}/drain", 422, json={"upstream": "http://who", "draining": True})
    assert said["errors"][0]["field"] == "upstream"
    assert "http://127.0.0.1:8000" in said["detail"]
    await problem(api, "PUT", f"{CHAT}/drain", 422, json={"upstream": "http://who"})


async def test_every_law_says_what_it_can_be_told(api: TestClient) -> None:
    laws = {law["name"]: law for law in (await ok(api, "GET", "/admin/v1/laws"))["laws"]}
    assert set(laws) == set(LAWS)
    options = {option["name"]: option for option in laws["deadline"]["options"]}
    assert options["back_off"]["accepted"] == "a number at least 0.5 and below 1"
    assert options["objective"]["choices"] == ["goodput", "efficiency"]
    assert options["late_target"]["default"] == 0.01


async def test_a_wrong_law_option_is_answered_with_what_would_be_right(api: TestClient) -> None:
    answer = await api.request("PUT", f"{CHAT}/law", json={"law": "aimd", "options": {"back_of": 0.9}})
    assert answer.status == 422
    assert "Did you mean 'back_off'?" in (await answer.json())["errors"][0]["message"]
