"""Filling a batch from the head of an order."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from policies import Pack, pack

Candidate = tuple[int, float]

candidates_strategy = st.lists(st.tuples(st.integers(1, 20), st.floats(0, 300)), max_size=25)
limits = st.tuples(st.integers(1, 16), st.one_of(st.none(), st.floats(1, 500)), st.integers(0, 5))


def fill(candidates: list[Candidate], max_items: int, max_tokens: float | None, max_skip: int = 0) -> Pack[Candidate]:
    return pack(
        candidates,
        max_items=max_items,
        max_tokens=max_tokens,
        items=lambda c: c[0],
        tokens=lambda c: c[1],
        max_skip=max_skip,
    )


@given(candidates=candidates_strategy, limits=limits)
@settings(max_examples=200, deadline=None)
def test_neither_limit_is_exceeded_except_by_an_oversize_head_that_goes_alone(
    candidates: list[Candidate], limits: tuple[int, float | None, int]
) -> None:
    max_items, max_tokens, max_skip = limits
    result = fill(candidates, max_items, max_tokens, max_skip)
    if len(result.taken) > 1:
        assert result.items <= max_items
        assert max_tokens is None or result.tokens <= max_tokens
    assert result.items == sum(c[0] for c in result.taken)
    assert result.tokens == sum(c[1] for c in result.taken)


@given(candidates=candidates_strategy, limits=limits)
@settings(max_examples=200, deadline=None)
def test_the_head_always_goes_and_the_order_is_kept(
    candidates: list[Candidate], limits: tuple[int, float | None, int]
) -> None:
    numbered = list(enumerate(candidates))
    max_items, max_tokens, max_skip = limits
    result = pack(
        numbered,
        max_items=max_items,
        max_tokens=max_tokens,
        items=lambda c: c[1][0],
        tokens=lambda c: c[1][1],
        max_skip=max_skip,
    )
    taken = [index for index, _ in result.taken]
    assert taken == sorted(set(taken))
    assert bool(taken) is bool(candidates)
    if taken:
        assert taken[0] == 0
        assert taken[-1] + 1 - len(taken) <= max_skip


@given(candidates=candidates_strategy, limits=limits)
@settings(max_examples=100, deadline=None)
def test_whatever_is_left_behind_did_not_fit_or_came_after_the_last_look(
    candidates: list[Candidate], limits: tuple[int, float | None, int]
) -> None:
    max_items, max_tokens, max_skip = limits
    looked_at = 0

    def items(candidate: Candidate) -> int:
        nonlocal looked_at
        looked_at += 1
        return candidate[0]

    result = pack(
        candidates, max_items=max_items, max_tokens=max_tokens, items=items, tokens=lambda c: c[1], max_skip=max_skip
    )
    assert looked_at <= len(result.taken) + max_skip + 1, "never a scan of the whole queue"
    if not result.full:
        assert result.taken == candidates


def test_an_item_larger_than_the_budget_goes_alone_at_once() -> None:
    assert fill([(1, 900.0), (1, 1.0)], 8, 100.0).taken == [(1, 900.0)]
    assert fill([(50, 1.0), (1, 1.0)], 8, 100.0).taken == [(50, 1.0)]


def test_without_skipping_the_first_misfit_closes_the_batch() -> None:
    result = fill([(1, 60.0), (1, 60.0), (1, 10.0)], 8, 100.0)
    assert result == Pack([(1, 60.0)], 1, 60.0, True)


def test_with_skipping_later_ones_fill_the_gap() -> None:
    assert fill([(1, 60.0), (1, 60.0), (1, 10.0)], 8, 100.0, 1).taken == [(1, 60.0), (1, 10.0)]


def test_nobody_is_passed_over_for_ever() -> None:
    """An endless supply of small jobs, and one that rarely fits: it goes as soon as it is the head."""
    waiting = deque([(1, 10.0), (1, 95.0), *[(1, 10.0)] * 500])
    batches = 0
    while (1, 95.0) in waiting:
        for taken in fill(list(waiting), 8, 100.0, 8).taken:
            waiting.remove(taken)
        batches += 1
    assert batches == 2


def test_a_batch_that_reaches_the_cap_is_full_and_one_that_does_not_is_not() -> None:
    assert fill([(1, 1.0)] * 4, 4, None).full
    assert not fill([(1, 1.0)] * 3, 4, None).full
    assert fill([], 4, None) == Pack([], 0, 0.0, False)
