from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.measure.sketch import Sketch, SlidingSketch

latencies = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=200)


def ranks(count: int, *quantiles: float) -> tuple[int, ...]:
    return tuple(max(1, math.ceil(q * count)) for q in quantiles)


def add(window: SlidingSketch, value: float, now: float) -> None:
    """Count a value in the slice that it belongs to; slices are two seconds long."""
    window.at(int(now // 2.0)).add(value)


@settings(max_examples=100, deadline=None)
@given(values=latencies, q=st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_every_quantile_is_within_the_relative_error(values: list[float], q: float) -> None:
    sketch = Sketch(0.01)
    for value in values:
        sketch.add(value)
    (rank,) = ranks(len(values), q)
    assert sketch.at_ranks((rank,)) == pytest.approx([sorted(values)[rank - 1]], rel=0.0101)


@settings(max_examples=50, deadline=None)
@given(left=latencies, right=latencies)
def test_merging_equals_adding_everything_to_one(left: list[float], right: list[float]) -> None:
    one, two, both = Sketch(), Sketch(), Sketch()
    for value in left:
        one.add(value)
        both.add(value)
    for value in right:
        two.add(value)
        both.add(value)
    one.merge(two)
    asked = ranks(both.count, 0.1, 0.5, 0.99)
    assert one.at_ranks(asked) == both.at_ranks(asked)
    assert (one.count, one.minimum, one.maximum) == (both.count, both.minimum, both.maximum)


def test_sketches_of_different_error_do_not_merge() -> None:
    with pytest.raises(ValueError, match="relative error"):
        Sketch(0.01).merge(Sketch(0.02))


def test_an_empty_sketch_has_no_quantiles() -> None:
    with pytest.raises(ValueError, match="empty"):
        Sketch().at_ranks((1,))


def test_a_sliding_window_forgets() -> None:
    window = SlidingSketch(window_s=10.0, slices=5)
    add(window, 1.0, now=0.5)
    add(window, 3.0, now=9.0)
    assert window.merged(9.5).count == 2
    assert window.merged(10.5).count == 1
    assert window.merged(10.5).at_ranks((1,)) == pytest.approx([3.0], rel=0.01)
    assert window.merged(30.0).count == 0


def test_memory_stays_bounded_under_any_load() -> None:
    window = SlidingSketch(window_s=10.0, slices=5)
    for step in range(5000):
        add(window, 0.001 * (1 + step % 4000), now=step * 0.1)
    assert len(window._sketches) <= 5
    assert all(len(sketch._buckets) < 600 for sketch in window._sketches.values())


def test_whoever_holds_the_slice_asked_for_last_may_add_to_it_after_a_look() -> None:
    window = SlidingSketch(window_s=10.0, slices=5)
    add(window, 1.0, now=9.0)
    for index in (4, 2):
        held = window.at(index)
        before = window.merged(9.5).count
        held.add(2.0)
        assert window.merged(9.5).count == before + 1


@given(st.lists(st.tuples(st.floats(0.0, 25.0), st.floats(0.001, 50.0), st.booleans()), max_size=60))
def test_looking_in_between_changes_nothing(steps: list[tuple[float, float, bool]]) -> None:
    """Late values for older slices included: what is merged once must never be out of date."""
    looked, plain = SlidingSketch(window_s=10.0, slices=5), SlidingSketch(window_s=10.0, slices=5)
    latest = 0.0
    for at, value, look in steps:
        latest = max(latest, at)
        add(looked, value, at)
        add(plain, value, at)
        if look:
            looked.merged(latest)
    seen, whole = looked.merged(latest), Sketch()
    plain.merged(latest)
    for sketch in plain._sketches.values():
        whole.merge(sketch)
    assert (seen.count, seen.minimum, seen.maximum) == (whole.count, whole.minimum, whole.maximum)
    assert seen._buckets == whole._buckets
    assert seen.total == pytest.approx(whole.total)
