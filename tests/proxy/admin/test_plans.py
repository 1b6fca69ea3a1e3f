"""Changes that are made later, for a while, or both; and who may make them."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from proxy.admin.scheduled import ScheduledChanges
from proxy.admin.server import make_app
from proxy.admin.temporary import TemporaryChanges
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator

POOL = "/admin/v1/pools/chat"
PLANS = "/admin/v1/plans"
NOW = 1e9 + 1000.0


async def planned(api: TestClient) -> list[dict[str, Any]]:
    async with api.get(PLANS) as answer:
        found: list[dict[str, Any]] = (await answer.json())["plans"]
        return found


async def change(api: TestClient, path: str, body: dict[str, Any], status: int, **query: Any) -> dict[str, Any]:
    method = "PATCH" if path in ("slo", "setpoints") else "PUT"
    params = {name: str(value) for name, value in query.items()}
    async with api.request(method, f"{POOL}/{path}", json=body, params=params) as answer:
        assert answer.status == status, await answer.text()
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_planned_change_is_made_in_its_time_and_taken_back(api: TestClient, operator: FakeOperator) -> None:
    plan = await change(api, "slo", {"ttft_ms": 300}, 202, at=NOW + 60, for_s=30)
    assert (plan["pool"], plan["kind"], plan["body"], plan["at"]) == ("chat", "slo", {"ttft_ms": 300}, NOW + 60)
    pool = operator.pools["chat"]
    assert pool.controller.slo.ttft_s == 0.5, "not yet"
    operator.clock.advance(61.0)
    assert pool.controller.slo.ttft_s == 0.3
    assert pool.controller.decisions.latest(1)[0].actor == "admin:api"
    assert await planned(api) == []
    operator.clock.advance(30.0)
    assert pool.controller.slo.ttft_s == 0.5


@pytest.mark.parametrize(
    ("path", "body", "attribute", "value"),
    [
        ("setpoints", {"max_batch_size": 3}, "pins", {"max_batch_size": 3.0}),
        ("law", {"law": "fixed", "options": {"admission": False}}, "law_options", {"admission": False}),
        ("freeze", {"frozen": True}, "frozen", True),
    ],
)
async def test_every_change_can_be_planned(
    api: TestClient, operator: FakeOperator, path: str, body: dict[str, Any], attribute: str, value: Any
) -> None:
    before = getattr(operator.pools["chat"].controller, attribute)
    await change(api, path, body, 202, at=NOW + 60, until=NOW + 90)
    operator.clock.advance(61.0)
    assert getattr(operator.pools["chat"].controller, attribute) == value
    operator.clock.advance(30.0)
    assert getattr(operator.pools["chat"].controller, attribute) == before


async def test_a_time_may_be_written_for_people(api: TestClient) -> None:
    text = datetime.fromtimestamp(NOW + 90, UTC).isoformat().replace("+00:00", "Z")
    assert (await change(api, "slo", {"ttft_ms": 300}, 202, at=text))["at"] == NOW + 90


@pytest.mark.parametrize(
    "query",
    [
        {"at": "tomorrow"},
        {"at": "2001-09-09T03:00:00"},
        {"at": NOW - 1},
        {"at": NOW + 400 * 86_400},
        {"until": NOW - 1},
        {"at": NOW + 60, "until": NOW + 50},
        {"until": NOW + 60, "for_s": 60},
        {"for_s": "60\n"},
        {"for_s": "6_0"},
        {"for_s": "٦٠"},
    ],
    ids=str,
)
async def test_a_time_that_makes_no_sense_is_refused(api: TestClient, query: dict[str, Any]) -> None:
    answer = await change(api, "slo", {"ttft_ms": 300}, 422, **query)
    assert answer["errors"][0]["field"] in query
    assert await planned(api) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("setpoints", {"max_batch_size": 5000}),
        ("law", {"law": "nobody's"}),
        ("law", {"law": "aimd", "options": {"x": 1}}),
    ],
)
async def test_what_would_be_refused_now_is_not_planned_either(
    api: TestClient, path: str, body: dict[str, Any]
) -> None:
    await change(api, path, body, 422, at=NOW + 60)
    assert await planned(api) == []


async def test_a_plan_follows_the_clock_on_the_wall(operator: FakeOperator) -> None:
    """It is set, and a machine that sleeps stops the monotonic one: the change is made at its time of day."""
    ahead = 0.0
    scheduled = ScheduledChanges(
        operator.clock,
        lambda: operator.pools,
        operator.decided,
        operator.temporary,
        lambda: 1e9 + operator.clock.now() + ahead,
    )
    frozen = lambda: operator.pools["chat"].controller.frozen  # noqa: E731
    scheduled.put("chat", "freeze", {"frozen": True}, NOW + 3600.0, None, "admin:a")
    operator.clock.advance(600.0)
    assert not frozen()
    ahead = 3000.0  # the machine slept
    operator.clock.advance(25.0)
    assert frozen()
    scheduled.put("chat", "freeze", {"frozen": False}, scheduled.wall() + 30.0, None, "admin:a")
    ahead = 0.0  # and was set back
    operator.clock.advance(3000.0)
    assert frozen()
    operator.clock.advance(60.0)
    assert not frozen()


async def test_a_plan_can_be_cancelled_once(api: TestClient, operator: FakeOperator) -> None:
    plan = await change(api, "slo", {"ttft_ms": 300}, 202, at=NOW + 60)
    async with api.get(PLANS) as answer:
        tag = answer.headers["ETag"]
    async with api.delete(f"{PLANS}/{plan['id']}", headers={"If-Match": '"other"'}) as answer:
        assert answer.status == 412
    async with api.delete(f"{PLANS}/{plan['id']}", headers={"If-Match": tag}) as answer:
        assert (answer.status, (await answer.json())["plans"]) == (200, [])
    for wrong in (plan["id"], "x"):
        async with api.delete(f"{PLANS}/{wrong}") as answer:
            assert answer.status == 404
    operator.clock.advance(100.0)
    assert operator.pools["chat"].controller.slo.ttft_s == 0.5


async def test_plans_and_expiries_survive_a_restart(api: TestClient, operator: FakeOperator) -> None:
    await change(api, "slo", {"ttft_ms": 300}, 200, for_s=100)
    await change(api, "freeze", {"frozen": True}, 202, at=NOW + 50)
    await change(api, "setpoints", {"max_batch_size": 3}, 202, at=NOW + 20, for_s=10)
    kept = (operator.temporary.dump(NOW), operator.scheduled.dump())
    operator.temporary.stop()
    operator.scheduled.stop()
    later = FakeOperator()
    later.clock.advance(40.0)
    later.temporary = TemporaryChanges(later.clock, lambda: later.pools, later.decided)
    later.scheduled = ScheduledChanges(
        later.clock, lambda: later.pools, later.decided, later.temporary, lambda: 1e9 + later.clock.now()
    )
    later.temporary.restore(kept[0], NOW + 40)
    later.scheduled.restore(kept[1])
    controller = later.pools["chat"].controller
    controller.set_slo(operator.pools["chat"].controller.slo, later.clock.now(), "admin:restore")
    later.clock.advance(11.0)
    assert controller.frozen
    assert controller.pins == {}, "its time passed while nothing ran"
    later.clock.advance(50.0)
    assert controller.slo.ttft_s == 0.5


async def test_tokens_have_names_and_roles() -> None:
    digest = {name: sha256(f"token-of-{name}".encode()).hexdigest() for name in ("ann", "bot")}
    config = AdminConfig.model_validate(
        {
            "port": 0,
            "token": "0123456789abcdef",
            "tokens": [
                {"name": "ann", "role": "write", "sha256": digest["ann"]},
                {"name": "bot", "sha256": f"sha256:{digest['bot']}"},
            ],
        }
    )
    operator = FakeOperator()

    def bearer(token: str, **more: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}", **more}

    async with TestClient(TestServer(make_app(operator, config))) as api:
        for token, read, write in (
            ("token-of-ann", 200, 200), ("token-of-bot", 200, 403), ("0123456789abcdef", 200, 200), ("x", 401, 401),
        ):  # fmt: skip
            async with api.get(POOL, headers=bearer(token)) as answer:
                assert answer.status == read
            async with api.patch(f"{POOL}/slo", json={"ttft_ms": 300}, headers=bearer(token)) as answer:
                assert answer.status == write
        async with api.post(f"{POOL}/what-if", json={}, headers=bearer("token-of-bot")) as answer:
            assert answer.status == 409, "asking what would be is no change"
        headers = bearer("token-of-ann", **{"X-Trimtab-Actor": "bob"})
        async with api.patch(f"{POOL}/slo", json={"ttft_ms": 200}, headers=headers) as answer:
            assert answer.status == 200
    actors = [decision.actor for decision in operator.pools["chat"].controller.decisions.since(0)]
    assert actors == ["admin:ann", "admin:api", "admin:ann+bob"], "a name cannot be put aside"


@pytest.mark.parametrize(
    "admin",
    [
        {"tokens": [{"name": "a", "sha256": "short"}]},
        {"tokens": [{"name": "a", "sha256": "a" * 64}, {"name": "a", "sha256": "b" * 64}]},
        {"host": "0.0.0.0"},
    ],
)
def test_tokens_that_cannot_be_right_are_refused(admin: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"SHA-256|two tokens|a token is required"):
        AdminConfig.model_validate(admin)
