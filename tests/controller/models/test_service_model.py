from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.models.service_model import ServiceModel


def trained(
    seconds: object, n: int = 300, noise: float = 0.05, sizes: tuple[int, ...] = tuple(range(1, 33))
) -> ServiceModel:
    assert callable(seconds)
    model, rng = ServiceModel(), random.Random(1)
    for _ in range(n):
        size = rng.choice(sizes)
        model.observe(size, seconds(size) * math.exp(rng.gauss(0.0, noise)))
    return model


def test_a_line_is_learned() -> None:
    model = trained(lambda b: 0.8 + 0.12 * b)
    for size in (1, 8, 16, 32):
        assert model.predict(size) == pytest.approx(0.8 + 0.12 * size, rel=0.08)


def test_a_knee_is_learned() -> None:
    model = trained(lambda b: (0.8 + 0.12 * b) * (1.0 + max(0.0, 0.12 * (b - 16))), n=600)
    for size in (8, 16, 28, 32):
        truth = (0.8 + 0.12 * size) * (1.0 + max(0.0, 0.12 * (size - 16)))
        assert model.predict(size) == pytest.approx(truth, rel=0.25)


def test_a_slow_down_is_followed_within_a_few_calls() -> None:
    model = trained(lambda b: 0.8 + 0.12 * b)
    for _ in range(6):
        model.observe(16, 1.6 * (0.8 + 0.12 * 16))
    assert model.predict(16) == pytest.approx(1.6 * (0.8 + 0.12 * 16), rel=0.15)


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_an_estimate_that_is_wrong_by_ten_heals_within_three_calls(factor: float) -> None:
    model = trained(lambda b: factor * (0.8 + 0.12 * b))
    for _ in range(3):
        model.observe(8, 0.8 + 0.12 * 8)
    assert model.predict(8) == pytest.approx(0.8 + 0.12 * 8, rel=0.25)


def test_one_outlier_does_not_move_the_level() -> None:
    model = trained(lambda b: 0.8 + 0.12 * b)
    before = model.predict(16)
    model.observe(16, 8.0 * before)
    assert model.predict(16) < 1.6 * before


def test_noise_is_averaged_and_not_chased() -> None:
    model, rng, off = ServiceModel(), random.Random(7), []
    for index in range(400):
        if index >= 100:
            off.append(model.predict(16) / 2.72 - 1.0)
        model.observe(16, 2.72 * math.exp(rng.gauss(0.0, 0.15)))
    assert math.sqrt(sum(value * value for value in off) / len(off)) < 0.6 * 0.15


def test_a_constant_load_is_taken_as_sixty_percent_proportional() -> None:
    model = trained(lambda b: 2.0, sizes=(8,), noise=0.01)
    assert model.predict(16) == pytest.approx(2.0 * (0.4 + 0.6 * 2), rel=0.1)


def test_lateness_raises_the_quantile_and_punctuality_lowers_it() -> None:
    model = ServiceModel(0.01)
    before = model.theta
    model.late(1.0)
    assert model.theta > before
    for _ in range(2000):
        model.late(0.0)
    assert model.theta == 0.5


def test_an_overdue_call_is_not_about_to_end() -> None:
    model = trained(lambda b: 1.0, noise=0.3)
    assert model.remaining_s(8, 0.0) >= model.predict(8)
    assert model.remaining_s(8, 5.0) > 0.5


@settings(max_examples=40, deadline=None)
@given(samples=st.lists(st.tuples(st.integers(1, 256), st.floats(1e-4, 1e3)), max_size=60))
def test_predictions_stay_finite_and_positive_whatever_was_seen(samples: list[tuple[int, float]]) -> None:
    model = ServiceModel()
    for size, seconds in samples:
        model.observe(size, seconds)
    for size in (1, 7, 64, 256):
        assert 0.0 < model.predict(size) < 1e9
        assert 0.0 < model.quantile_s(size) < 1e10


def test_lateness_before_a_shift_does_not_widen_the_quantile_for_good() -> None:
    model = ServiceModel()
    for index in range(60):
        model.observe(8.0, 1.0 + 0.02 * (index % 5))
        model.late(0.0)
    before = model.theta
    for index in range(12):
        seconds = 1.8 + 0.02 * (index % 5)
        model.late(float(seconds > model.quantile_s(8.0)))
        model.observe(8.0, seconds)
    assert model.theta <= before + 0.05
    assert model.predict(8.0) == pytest.approx(1.84, rel=0.1)


def test_a_speed_that_changes_again_and_again_is_followed_every_time() -> None:
    """Gains that fall with the noise would take the changes themselves for noise, and follow ever more slowly."""
    model, rng = ServiceModel(), random.Random(5)
    off = []
    for index in range(200):
        slow = 2.0 if index // 10 % 2 else 1.0
        seconds = slow * rng.lognormvariate(0.0, 0.05)
        if index >= 40 and index % 10 >= 4:
            off.append(abs(model.predict(8.0) / slow - 1.0))
        model.observe(8.0, seconds)
    off.sort()
    assert off[len(off) // 2] < 0.1
    assert off[int(0.9 * len(off))] < 0.35
