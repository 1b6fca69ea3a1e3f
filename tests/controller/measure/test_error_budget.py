from __future__ import annotations

import pytest

from controller.measure.error_budget import WINDOWS, ErrorBudget
from controller.observation import Result
from controller.slo import SLO
from tests.controller.build import controller, observation


def test_a_burn_rate_of_one_spends_exactly_what_is_allowed() -> None:
    spent = ErrorBudget(0.0)
    for second in range(1000):
        spent.add(float(second), second % 100 == 0)
    assert spent.spent(1000.0, 3600.0, 0.01) == (1000, 10, pytest.approx(1.0))
    assert spent.as_dict(1000.0, 0.99)["remaining"] == pytest.approx(0.0)


def test_each_window_forgets_what_is_older_than_itself() -> None:
    spent = ErrorBudget(0.0)
    spent.add(0.0, True)
    for hour in (0.9, 1.1, 5.9, 6.1, 23.9, 24.1):
        now = hour * 3600.0
        seen = {name: spent.spent(now, span, 0.01).late for name, span in WINDOWS}
        assert seen == {name: int(now < span) for name, span in WINDOWS}, hour


def test_nothing_is_claimed_while_nothing_has_ended() -> None:
    shown = ErrorBudget(50.0).as_dict(60.0, 0.99)
    assert shown["remaining"] is None
    assert shown["covered_s"] == 10.0
    assert shown["windows"]["1h"] == {"n": 0, "late": 0, "late_share": None, "burn_rate": None}


def test_a_month_of_traffic_takes_no_more_memory_than_a_day() -> None:
    spent = ErrorBudget(0.0)
    for minute in range(30 * 24 * 60):
        spent.add(60.0 * minute, False)
    assert len(spent._slices) <= 24 * 60


def test_every_class_has_an_error_budget_of_its_own() -> None:
    pool = controller(slo=SLO(e2e_s=10.0))
    for index in range(20):
        late = observation(12.0, done=100.0 + index)
        late.klass = "batch"
        pool.observe(late)
        pool.observe(observation(2.0, done=100.0 + index))
    shown = pool.snapshot(121.0)
    assert shown["classes"]["batch"]["error_budget"]["windows"]["1h"]["late"] == 20
    assert shown["classes"]["default"]["error_budget"]["windows"]["1h"]["late"] == 0
    assert shown["error_budget"]["windows"]["1h"] == {
        "n": 40,
        "late": 20,
        "late_share": 0.5,
        "burn_rate": pytest.approx(50.0),
    }


@pytest.mark.parametrize(("result", "counted"), [(Result.REFUSED, 0), (Result.CANCELLED, 0), (Result.TIMEOUT, 1)])
def test_only_admitted_requests_that_were_owed_an_answer_count(result: Result, counted: int) -> None:
    pool = controller(slo=SLO(e2e_s=10.0))
    pool.observe(observation(2.0, result=result))
    assert pool.snapshot(101.0)["error_budget"]["windows"]["1h"]["n"] == counted


def test_the_budget_of_a_pool_is_the_sum_of_its_classes() -> None:
    parts = [ErrorBudget(0.0), ErrorBudget(0.0), ErrorBudget(0.0)]
    alone = ErrorBudget(0.0)
    for index in range(600):
        now, late = 20.0 * index, index % 7 == 0
        parts[index % 2].add(now, late)
        alone.add(now, late)
    whole = ErrorBudget.total(parts, 0.0)
    assert whole.as_dict(12_100.0, 0.99) == alone.as_dict(12_100.0, 0.99)
    assert whole.as_dict(12_100.0, 0.99)["windows"]["24h"]["n"] == 600


def test_what_ended_before_the_newest_minute_counts_in_it() -> None:
    spent = ErrorBudget(0.0)
    spent.add(125.0, late=False)
    spent.add(119.0, late=True)
    assert spent.spent(125.0, 60.0, 0.01)[:2] == (2, 1)
