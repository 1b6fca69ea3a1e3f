from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predictor.calibration import Calibration, Outcome, kendall_tau, pinball

small = st.integers(0, 6).map(float)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(small, small), max_size=30))
def test_tau_equals_the_definition_with_ties(pairs: list[tuple[float, float]]) -> None:
    score = untied_x = untied_y = 0
    for i, (x1, y1) in enumerate(pairs):
        for x2, y2 in pairs[:i]:
            score += (x1 > x2) - (x1 < x2) == (y1 > y2) - (y1 < y2) != 0
            score -= (x1 - x2) * (y1 - y2) < 0
            untied_x += x1 != x2
            untied_y += y1 != y2
    expected = score / math.sqrt(untied_x * untied_y) if untied_x and untied_y else 0.0
    assert kendall_tau([x for x, _ in pairs], [y for _, y in pairs]) == pytest.approx(expected)


def test_pinball_charges_misses_above_a_ninth_decile_nine_times_as_much() -> None:
    assert pinball(20, 10, 0.9) == pytest.approx(9.0)
    assert pinball(10, 20, 0.9) == pytest.approx(1.0)


def test_a_report_compares_with_the_constant_and_keeps_to_the_window() -> None:
    calibration = Calibration(window=50)
    for index in range(200):
        calibration.observe("m", Outcome(index, index + 5, 100, 180, None, index))
    assert calibration.report("m")["tau"] is None
    calibration.refresh()
    calibration.refresh()
    report = calibration.report("m")
    assert report["n"] == 50
    assert report["tau"] == pytest.approx(1.0)
    assert report["pinball50_ratio"] == 0.0
    assert report["coverage90"] == 1.0
    assert calibration.report("")["n"] == 50


def test_sums_are_those_of_the_newest_outcomes() -> None:
    calibration = Calibration(window=30)
    rng = random.Random(4)
    outcomes = []
    for _ in range(500):
        p50 = rng.uniform(1, 500)
        shadow = rng.choice([None, 50.0])
        outcomes.append(Outcome(p50, p50 + rng.uniform(0, 99), 200.0, 400.0, shadow, rng.randrange(600)))
        calibration.observe("m", outcomes[-1])
    newest = outcomes[-30:]
    report = calibration.report("m")
    loss, constant = (sum(pinball(o.actual, getattr(o, name), 0.9) for o in newest) for name in ("p90", "constant90"))
    assert report["pinball90_ratio"] == pytest.approx(loss / constant)
    assert report["mae"] == pytest.approx(sum(abs(o.actual - o.p50) for o in newest) / 30)
    assert report["coverage90"] == sum(o.actual <= o.p90 for o in newest) / 30
    assert report["bias"] == pytest.approx(sum(math.log((o.actual + 1) / (o.p50 + 1)) for o in newest) / 30)


def test_too_few_outcomes_make_no_claim() -> None:
    calibration = Calibration()
    for _ in range(19):
        calibration.observe("m", Outcome(1, 2, 3, 4, None, 5))
    assert calibration.report("m")["tau"] is None


def test_models_are_bounded() -> None:
    calibration = Calibration(capacity=5)
    for index in range(40):
        calibration.observe(f"model {index}", Outcome(1, 2, 3, 4, None, 5))
    assert len(calibration.models()) == 4
    assert calibration.report("")["n"] == 40
