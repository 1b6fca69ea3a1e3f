from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.measure.stats import (
    SPRT,
    binomial_cdf,
    proportion_interval,
    proves_above,
    proves_below,
    quantile_ranks,
)


def exact_cdf(k: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 200), share=st.floats(0.001, 0.999), data=st.data())
def test_binomial_cdf_equals_the_sum_of_its_terms(n: int, share: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    assert binomial_cdf(k, n, share) == pytest.approx(exact_cdf(k, n, share), abs=1e-9)


@pytest.mark.parametrize(("late", "n"), [(0, 299), (1, 473), (2, 628), (3, 773), (5, 1049), (10, 1693)])
def test_so_many_are_needed_to_prove_a_p99_met(late: int, n: int) -> None:
    assert proves_below(late, n, 0.01)
    assert not proves_below(late, n - 1, 0.01)


@pytest.mark.parametrize(("late", "n"), [(1, 5), (2, 35), (3, 82), (4, 137), (5, 198), (6, 262)])
def test_so_few_are_needed_to_prove_a_p99_missed(late: int, n: int) -> None:
    assert proves_above(late, n, 0.01)
    assert not proves_above(late, n + 1, 0.01)


def test_nothing_is_proven_by_nothing() -> None:
    assert not proves_above(0, 0, 0.01)
    assert not proves_below(0, 0, 0.01)
    assert proportion_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("k", "n", "low", "high"), [(0, 10, 0.0, 0.30850), (2, 35, 0.00700, 0.19157), (10, 10, 0.69150, 1.0)]
)
def test_share_intervals_are_clopper_and_pearsons(k: int, n: int, low: float, high: float) -> None:
    assert proportion_interval(k, n) == pytest.approx((low, high), abs=1e-4)


def test_quantile_ranks_give_no_upper_bound_for_p99_below_368_samples() -> None:
    assert quantile_ranks(367, 0.99)[1] is None
    assert quantile_ranks(368, 0.99)[1] == 368
    assert quantile_ranks(100, 0.5) == (40, 61)


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 3000), q=st.sampled_from([0.5, 0.95, 0.99]))
def test_quantile_ranks_enclose_the_quantile_with_the_stated_confidence(n: int, q: float) -> None:
    low, high = quantile_ranks(n, q)
    below = binomial_cdf(low - 1, n, q)
    above = 0.0 if high is None else 1.0 - binomial_cdf(high - 1, n, q)
    assert below <= 0.025 + 1e-9
    assert above <= 0.025 + 1e-9


def test_sprt_shrinks_after_three_late_and_grows_after_194_clean() -> None:
    test = SPRT()
    assert [test.add(True) for _ in range(3)] == [0, 0, 1]
    verdicts = [test.add(False) for _ in range(194)]
    assert verdicts[-1] == -1
    assert not any(verdicts[:-1])


def test_sprt_starts_anew_after_a_decision() -> None:
    test = SPRT()
    assert [test.add(True) for _ in range(6)] == [0, 0, 1, 0, 0, 1]


def test_sprt_refuses_shares_in_the_wrong_order() -> None:
    with pytest.raises(ValueError, match="p0 < p1"):
        SPRT(p0=0.02, p1=0.01)


def test_more_late_never_proves_less() -> None:
    for n in (50, 500):
        proofs = [proves_above(late, n, 0.01) for late in range(20)]
        assert all(a <= b for a, b in pairwise(proofs))
