"""Limits of one caller: never more than promised, never less, and nothing lost or made by corrections."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.access.limits import Allowance, Bucket

STEPS = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 50.0), st.floats(0.0, 2.0)), min_size=1, max_size=60
)  # seconds passed, cost, share of it that was really used


@settings(max_examples=200)
@given(rate=st.floats(0.01, 100.0), burst=st.floats(1.0, 200.0), steps=STEPS)
def test_no_span_of_time_admits_more_than_burst_and_rate_allow(
    rate: float, burst: float, steps: list[tuple[float, float, float]]
) -> None:
    bucket, now, taken = Bucket(rate, burst, 0.0), 0.0, [(0.0, 0.0)]
    for passed, cost, _ in steps:
        now += passed
        cost = min(cost, burst)
        if bucket.wait_s(cost, now) == 0.0:
            bucket.take(cost, now)
            taken.append((now, cost))
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            span = taken[last][0] - taken[first][0]
            total = sum(cost for _, cost in taken[first : last + 1])
            assert total <= (burst + rate * span) * (1.0 + 1e-6)


@settings(max_examples=200)
@given(rate=st.floats(0.01, 100.0), burst=st.floats(1.0, 200.0), steps=STEPS)
def test_corrections_never_fill_beyond_the_burst_and_bill_what_was_used(
    rate: float, burst: float, steps: list[tuple[float, float, float]]
) -> None:
    allowance = Allowance(requests=None, tokens=(bucket := Bucket(rate, burst, 0.0)), max_inflight=None)
    now, used, largest = 0.0, 0.0, 0.0
    for passed, predicted, share in steps:
        now += passed
        if allowance.admit(predicted, now) is None:
            allowance.settle(predicted, predicted * share, now)
            used += predicted * share
            largest = max(largest, predicted * max(1.0, share))
        assert bucket.level <= burst
        assert used <= (burst + rate * now + largest) * (1.0 + 1e-6)
    assert allowance.inflight == 0


@settings(max_examples=200)
@given(
    rate=st.floats(0.01, 100.0),
    burst=st.floats(1.0, 200.0),
    debts=st.lists(st.floats(0.1, 400.0), min_size=1, max_size=10),
    cost=st.floats(0.01, 400.0),
)
def test_who_comes_back_when_told_is_let_in(rate: float, burst: float, debts: list[float], cost: float) -> None:
    bucket = Bucket(rate, burst, 0.0)
    for debt in debts:
        bucket.take(debt, 0.0)
    wait = bucket.wait_s(cost, 0.0)
    assert 0.0 <= wait < math.inf
    if wait > 0.01:
        assert bucket.wait_s(cost, 0.99 * wait) > 0.0, "not a moment later than needed"
    assert bucket.wait_s(cost, wait) == pytest.approx(0.0, abs=1e-6 * (wait + 1.0))


def test_a_cost_above_the_burst_waits_for_a_full_bucket_and_is_paid_for_afterwards() -> None:
    bucket = Bucket(1.0, 10.0, 0.0)
    assert bucket.wait_s(40.0, 0.0) == 0.0
    bucket.take(40.0, 0.0)
    assert bucket.wait_s(1.0, 0.0) == pytest.approx(31.0)
    assert bucket.wait_s(40.0, 31.0) == pytest.approx(9.0)


def test_a_clock_that_goes_back_fills_nothing() -> None:
    bucket = Bucket(1.0, 5.0, 100.0)
    bucket.take(5.0, 100.0)
    assert bucket.wait_s(1.0, 90.0) == pytest.approx(1.0)
    assert bucket.wait_s(1.0, 101.0) == 0.0


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_a_bucket_that_makes_no_sense_is_refused(rate: float, burst: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        Bucket(rate, burst, 0.0)


def allowance() -> Allowance:
    return Allowance(requests=Bucket(1.0, 3.0, 0.0), tokens=Bucket(10.0, 100.0, 0.0), max_inflight=2)


def test_each_limit_gives_its_own_reason_and_time() -> None:
    callers = allowance()
    assert callers.admit(10.0, 0.0) is None
    assert callers.admit(10.0, 0.0) is None
    refusal = callers.admit(10.0, 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.limit) == ("too_many_inflight", "2 requests at once")
    callers.settle(10.0, 10.0, 0.0)
    refusal = callers.admit(90.0, 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.limit) == ("rate_limited_tokens", "600 tokens per minute")
    assert refusal.after_s == pytest.approx(1.0)
    assert callers.admit(10.0, 0.0) is None, "what was refused has cost nothing"
    callers.settle(10.0, 10.0, 0.0)
    refusal = callers.admit(10.0, 0.0)
    assert refusal is not None
    assert (refusal.reason, refusal.limit) == ("rate_limited_requests", "60 requests per minute")
    assert refusal.after_s == pytest.approx(1.0)


def test_a_bad_prediction_is_made_good_when_the_answer_is_over() -> None:
    callers = Allowance(requests=None, tokens=(bucket := Bucket(1.0, 100.0, 0.0)), max_inflight=None)
    assert callers.admit(80.0, 0.0) is None
    callers.settle(80.0, 5.0, 0.0)
    assert bucket.level == pytest.approx(95.0)
    assert callers.admit(5.0, 0.0) is None
    callers.settle(5.0, 200.0, 0.0)
    assert bucket.level == pytest.approx(-105.0)
