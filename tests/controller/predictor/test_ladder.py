from __future__ import annotations

import json
import random

import pytest

from controller.predictor.ladder import COVERED_LOW, Holdout, Ladder, Rung, holdout_of

USUAL = (100.0, 200.0)


def feed(ladder: Ladder, n: int, p50: float, p90: float, actual: float, *, model: str = "m") -> None:
    for _ in range(n):
        ladder.observe(
            Rung.HISTORY, model, p50, p90, USUAL, actual, scale=100.0, covered=actual <= p90
        )  # fmt: skip


def test_a_step_needs_a_record_before_it_decides() -> None:
    ladder = Ladder(min_samples=20)
    feed(ladder, 19, 50.0, 60.0, 50.0)
    assert not ladder.orders(Rung.HISTORY, "m")
    assert "19 of the 20" in ladder.report()["history"]["why"]
    feed(ladder, 1, 50.0, 60.0, 50.0)
    assert ladder.orders(Rung.HISTORY, "m")
    assert ladder.admits(Rung.HISTORY, "m")
    assert ladder.in_use("m") == {"order": "history", "admit": "history"}


def test_a_step_worse_than_the_usual_length_loses_its_place_and_can_win_it_back() -> None:
    ladder = Ladder()
    feed(ladder, 200, 50.0, 60.0, 50.0)
    feed(ladder, 600, 300.0, 900.0, 100.0)
    assert not ladder.orders(Rung.HISTORY, "m")
    assert not ladder.admits(Rung.HISTORY, "m")
    assert "times what the usual" in ladder.report()["history"]["why"]
    feed(ladder, 1500, 50.0, 60.0, 50.0)
    assert ladder.orders(Rung.HISTORY, "m")


def test_a_ninth_decile_that_covers_too_little_admits_nobody() -> None:
    ladder = Ladder()
    rng = random.Random(1)
    for _ in range(500):
        actual = 300.0 if rng.random() < 0.25 else 50.0
        ladder.observe(
            Rung.HISTORY, "m", 50.0, 290.0, (50.0, 100.0), actual, scale=50.0, covered=actual <= 290.0
        )  # fmt: skip
    assert ladder.orders(Rung.HISTORY, "m"), "its median is as good as the constant's"
    assert not ladder.admits(Rung.HISTORY, "m"), "although it loses less than the constant's"
    why = ladder.report()["history"]["why"]
    assert "covers 7" in why
    assert f"{COVERED_LOW:.0%}" in why


def test_covering_everything_is_no_fault_where_that_costs_nothing() -> None:
    ladder = Ladder()
    feed(ladder, 100, 50.0, 50.0, 50.0)
    assert ladder.report()["history"]["coverage"] == 1.0
    assert ladder.admits(Rung.HISTORY, "m")


def test_a_cut_answer_says_nothing_about_coverage() -> None:
    ladder = Ladder()
    for _ in range(100):
        ladder.observe(Rung.HISTORY, "m", 16.0, 16.0, (16.0, 16.0), 16.0, scale=100.0, covered=None)
    assert ladder.report()["history"]["coverage"] is None


def test_a_little_known_model_is_judged_by_all_together() -> None:
    ladder = Ladder(min_samples=50)
    feed(ladder, 100, 50.0, 60.0, 50.0, model="known")
    assert ladder.orders(Rung.HISTORY, "new")
    feed(ladder, 50, 900.0, 990.0, 100.0, model="new")
    assert not ladder.orders(Rung.HISTORY, "new")
    assert ladder.orders(Rung.HISTORY, "known")


def test_a_new_model_is_judged_by_its_holdout_until_it_has_a_record() -> None:
    ladder = Ladder(min_samples=50)
    ladder.promoted(Holdout(60, 0.3, 0.2, 0.4, 0.3))
    assert ladder.orders(Rung.LEARNED, "m")
    assert ladder.admits(Rung.LEARNED, "m")
    ladder.promoted(Holdout(2000, 0.5, 0.4, 0.4, 0.3))
    assert not ladder.orders(Rung.LEARNED, "m")
    ladder.promoted(None)
    assert ladder.in_use() == {"order": "none", "admit": "none"}


def test_after_a_drift_a_new_record_is_made_quickly() -> None:
    ladder = Ladder()
    feed(ladder, 1000, 50.0, 60.0, 50.0)
    ladder.drifted("m")
    feed(ladder, 30, 900.0, 990.0, 100.0)
    assert not ladder.orders(Rung.HISTORY, "m")


def test_models_are_bounded_and_records_survive_as_json() -> None:
    ladder = Ladder(capacity=5)
    for index in range(20):
        feed(ladder, 60, 50.0, 60.0, 50.0, model=f"{index}")
    copy = Ladder(capacity=5)
    copy.restore(json.loads(json.dumps(ladder.state())))
    assert copy.report() == ladder.report()
    assert copy.report("19") == ladder.report("19")
    assert ladder.report("3") == {}


@pytest.mark.parametrize("numbers", [[1, 2], [1] * 9 + ["x"] * 2, [1, -1, 0, 0, 0, 0, 0, 0, True, True], None, 5])
def test_numbers_that_are_no_record_are_refused(numbers: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Ladder().restore([["", "usual", numbers]])


def test_a_report_without_a_holdout_has_none() -> None:
    assert holdout_of({"rows": 1}) is None
    full = {"judged": 5.0, "loss50": 1, "loss90": 2, "usual50": 3, "usual90": 4}
    assert holdout_of(full) == Holdout(5, 1.0, 2.0, 3.0, 4.0)
