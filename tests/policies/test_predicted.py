"""Ageing by rank: as strong for short answers as for long ones, and for narrow predictions as for wide ones."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Job, JobHeap
from policies.predicted import Predicted
from policies.ranks import PLACES, Ranks, place
from tests.policies.simulation import serve, take

SLACK_S = 30.0


def job(predicted: float | None, arrival: float = 0.0) -> Job:
    return Job(id="x", arrival=arrival, predicted_tokens=predicted)


def lengths(count: int, *, middle: float, spread: float, seed: int = 1) -> list[float]:
    """Lognormal lengths; `spread` is the standard deviation of their natural logarithm."""
    rng = random.Random(seed)
    return [middle * math.exp(rng.gauss(0.0, spread)) for _ in range(count)]


def used_to(predictions: Iterable[float]) -> Predicted:
    """A policy that has seen `predictions` long ago."""
    policy = Predicted(max_slack_s=SLACK_S)
    for prediction in predictions:
        policy.key(job(prediction, arrival=-1e6))
    return policy


@pytest.mark.parametrize("middle", [12.0, 300.0, 9_000.0])
@pytest.mark.parametrize("spread", [0.4, 0.8])
def test_the_slack_is_used_whole_at_any_scale_and_spread(middle: float, spread: float) -> None:
    seen = lengths(3000, middle=middle, spread=spread)
    policy = used_to(seen)
    ordered = sorted(seen)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        slack = policy.key(job(ordered[int(q * len(ordered))]))
        assert slack == pytest.approx(q * SLACK_S, abs=0.1 * SLACK_S)


def test_lengths_that_hardly_differ_are_hardly_reordered() -> None:
    seen = lengths(3000, middle=300.0, spread=0.02)
    policy = used_to(seen)
    longer = policy.key(job(309.0))
    assert 0.0 <= longer - policy.key(job(300.0)) <= 0.25 * SLACK_S


def test_equals_are_served_in_order_of_arrival_while_ranks_move() -> None:
    """Ever longer answers lower the rank of 200 tokens faster than time passes."""
    policy = used_to(lengths(600, middle=50.0, spread=0.3))
    heap: JobHeap[float] = JobHeap()
    keys = []
    for index in range(400):
        arrival = index / 1000
        policy.key(job(2000.0, arrival))
        handle = heap.push(policy.key(job(200.0, arrival)), arrival)
        keys.append(handle.key)
    assert policy.key(job(200.0, 1000.0)) - 1000.0 < 0.6 * SLACK_S < keys[0], "the rank did fall"
    assert keys == sorted(keys)
    assert [take(heap) for _ in range(400)] == [index / 1000 for index in range(400)]


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1e7)), max_size=60))
def test_of_two_in_one_place_the_later_never_gets_the_smaller_key(calls: list[tuple[float, float]]) -> None:
    policy = Predicted(max_slack_s=SLACK_S)
    keys: dict[int, list[float]] = defaultdict(list)
    now = 0.0
    for wait, predicted in calls:
        now += wait
        key = policy.key(job(predicted, now))
        assert now <= key <= now + SLACK_S
        keys[place(predicted)].append(key)
    for those in keys.values():
        assert those == sorted(those)


def test_while_nothing_is_predicted_it_is_first_come_first_served() -> None:
    jobs = [Job(id=str(i), arrival=0.01 * i) for i in range(200)]
    served = serve(Predicted(), jobs, service_s=lambda _: 1.0)
    assert [entry.job.id for entry in served] == [each.id for each in jobs]


def test_after_a_change_of_scale_the_old_lengths_are_forgotten() -> None:
    before, after = lengths(5000, middle=40.0, spread=0.5), lengths(3000, middle=1500.0, spread=0.5)
    moved, fresh = used_to(before + after), used_to(after)
    for predicted in (40.0, 700.0, 1500.0, 3000.0):
        assert moved.key(job(predicted)) == pytest.approx(fresh.key(job(predicted)), abs=0.05 * SLACK_S)


def test_from_the_first_request_on_short_goes_before_long() -> None:
    policy = Predicted(max_slack_s=SLACK_S)
    assert policy.key(job(20.0)) + 0.5 * SLACK_S < policy.key(job(1000.0))


@given(st.lists(st.integers(0, PLACES - 1), max_size=50))
def test_ranks_lie_between_0_and_1_and_rise_with_the_length(seen: list[int]) -> None:
    ranks = Ranks()
    for own in seen:
        ranks.add(own)
    table = [ranks.rank(own) for own in range(PLACES)]
    assert all(0.0 <= low <= high + 1e-12 for low, high in pairwise(table))
    assert table[-1] <= 1.0


def test_every_length_has_a_place_and_longer_ones_no_lower_one() -> None:
    values = [-1.0, 0.0, 1.0, 1.5, 2.0, 100.0, 2.0**20 - 1e-9, 2.0**20, 1e300, math.inf]
    places = [place(value) for value in values]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, PLACES - 1)
    assert place(math.nan) == 0
