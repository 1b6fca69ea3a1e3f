from __future__ import annotations

import math
import random

import pytest

from controller.predictor.conformal import Conformal
from controller.predictor.drift import CoverageMonitor, PageHinkley, accept
from controller.predictor.guard import Breaker


def test_steady_noise_raises_no_alarm() -> None:
    rng = random.Random(3)
    test = PageHinkley()
    assert not any(test.observe(rng.gauss(0, 0.9)) for _ in range(20_000))


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_lengths_that_double_or_halve_are_noticed_soon(factor: float) -> None:
    rng = random.Random(4)
    test = PageHinkley()
    for _ in range(2_000):
        test.observe(rng.gauss(0, 0.9))
    assert any(test.observe(rng.gauss(math.log(factor), 0.9)) for _ in range(250))


def test_coverage_alarms_only_outside_its_band_and_only_over_a_full_window() -> None:
    monitor = CoverageMonitor(window=100)
    for index in range(99):
        monitor.observe(index % 2 == 0)
    assert not monitor.alarm
    monitor.observe(True)
    assert monitor.alarm
    for index in range(100):
        monitor.observe(index % 10 != 0)
    assert not monitor.alarm


@pytest.mark.parametrize(
    ("new", "old", "accepted"),
    [(0.9, 1.0, True), (1.019, 1.0, True), (1.021, 1.0, False), (math.nan, 1.0, False), (0.0, 0.0, True)],
)
def test_a_new_model_serves_unless_it_is_two_percent_worse(new: float, old: float, accepted: bool) -> None:
    assert accept(new, old).accepted is accepted


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.0])
def test_coverage_is_held_whatever_the_model_gets_wrong(bias: float) -> None:
    rng = random.Random(5)
    conformal = Conformal()
    held = 0
    for index in range(6_000):
        actual, p90 = rng.gauss(0, 1), 1.28 + bias + conformal.theta("m", "r")
        held += index >= 2_000 and actual <= p90
        conformal.observe("m", "r", actual > p90)
    assert held / 4_000 == pytest.approx(0.9, abs=0.01)


def test_a_route_without_outcomes_borrows_the_correction_of_all() -> None:
    conformal = Conformal()
    for index in range(500):
        conformal.observe("m", "a", index % 2 == 0)
    assert conformal.theta("other", "b") == pytest.approx(conformal.theta("m", "a"), abs=0.3)
    copy = Conformal()
    copy.restore(conformal.state())
    assert copy.theta("m", "a") == conformal.theta("m", "a")
    conformal.restart(0.25)
    assert conformal.theta("m", "a") == 0.25


def test_a_step_that_fails_or_is_late_rests_and_is_tried_again() -> None:
    breaker = Breaker(late_s=0.001, limit=6.0, rest=10)
    for _ in range(3):
        assert breaker.allow()
        breaker.failed()
    assert [breaker.allow() for _ in range(11)] == [False] * 10 + [True]
    for _ in range(6):
        breaker.took(0.002)
    assert not breaker.allow()
    assert breaker.trips == 2


def test_now_and_then_late_is_forgiven() -> None:
    breaker = Breaker()
    for index in range(2_000):
        assert breaker.allow()
        breaker.took(0.002 if index % 20 == 0 else 0.0001)
    assert breaker.trips == 0
