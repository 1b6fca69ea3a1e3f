"""Quantiles come from what was measured, not from a distribution that somebody assumed."""

from __future__ import annotations

import math
import random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.models.residuals import ResidualRing


def filled(values: list[float], size: int = 120) -> ResidualRing:
    ring = ResidualRing(size)
    for value in values:
        ring.add(value)
    return ring


def test_a_heavy_tail_is_met_as_often_as_asked_where_a_normal_fit_is_not() -> None:
    rng = random.Random(4)

    def ratio() -> float:
        return rng.uniform(3.0, 6.0) if rng.random() < 0.08 else rng.lognormvariate(0.0, 0.05)

    seen = [ratio() for _ in range(1000)]
    ring = filled(seen, 1000)
    fresh = [ratio() for _ in range(4000)]
    for q in (0.5, 0.9, 0.95):
        assert fmean(value <= ring.quantile(q) for value in fresh) == pytest.approx(q, abs=0.025)
    normal = fmean(seen) + 1.645 * pstdev(seen)
    assert abs(normal / ring.quantile(0.95) - 1.0) > 0.2, "so that the check above is not one any fit passes"


@given(st.lists(st.floats(0.01, 100.0), min_size=8, max_size=60), st.floats(0.0, 1.0))
def test_a_quantile_is_one_of_the_newest_ratios(values: list[float], q: float) -> None:
    ring = filled(values, 20)
    assert ring.quantile(q) in values[-20:]
    assert len(ring) == min(20, len(values))


def test_little_evidence_gives_a_narrow_prior() -> None:
    ring = filled([5.0] * 7)
    assert (ring.quantile(0.0), ring.quantile(0.5), ring.quantile(0.99)) == (0.9, 1.0, 1.1)
    assert ring.spread() == ring.log_spread() == 0.1
    ring.add(5.0)
    assert ring.quantile(0.5) == 5.0


def test_the_newest_can_be_taken_back() -> None:
    ring = filled([1.0] * 10 + [9.0] * 3)
    ring.drop_newest(3)
    assert (len(ring), ring.quantile(1.0)) == (10, 1.0)
    ring.drop_newest(99)
    assert len(ring) == 0


def test_spread_is_that_of_the_middle_and_no_straggler_widens_it() -> None:
    rng = random.Random(2)
    usual = [math.exp(rng.gauss(0.0, 0.1)) for _ in range(110)]
    assert filled(usual).spread() == pytest.approx(0.1, rel=0.3)
    assert filled([*usual, *[50.0] * 6]).spread() == pytest.approx(filled(usual).spread(), rel=0.3)
    assert filled([1.0] * 20).spread() == 0.02


def test_the_longer_a_call_has_taken_the_longer_it_may_still_take() -> None:
    ring = filled([1.0] * 90 + [4.0] * 10)
    assert ring.mean_excess(0.0) == pytest.approx(1.3)
    assert ring.mean_excess(1.5) == pytest.approx(2.5)
    assert ring.mean_excess(8.0) == pytest.approx(2.0), "nothing so slow was ever seen"


def test_what_a_call_may_still_take_follows_every_change() -> None:
    ring = filled([1.0, 2.0, 3.0])
    assert ring.mean_excess(1.5) == pytest.approx(1.0)
    ring.add(7.0)
    assert ring.mean_excess(1.5) == pytest.approx(2.5)
    ring.drop_newest(2)
    assert ring.mean_excess(1.5) == pytest.approx(0.5)
    ring.drop_newest(2)
    assert ring.mean_excess(1.5) == pytest.approx(0.25 * 1.5)
