from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dispatch.former import batch_sizes, first_come, form_batch, form_mixed, moore_hodgson
from controller.verdict import Choice

INF = float("inf")


def line(size: int) -> float:
    return 1.0 + 0.1 * size


def test_the_batch_serves_most_feasible_requests_per_second() -> None:
    # 20 waiting, all with time for a batch of 20: the larger the better.
    assert form_batch([100.0] * 20, 32, 0.0, line, line).take == 20
    # Only 2 s left: a batch of ten is the largest that makes it.
    assert form_batch([2.0] * 20, 32, 0.0, line, line).take == 10


def test_those_who_cannot_make_it_in_the_chosen_batch_are_shed() -> None:
    choice = form_batch([1.2] + [100.0] * 9, 32, 0.0, line, line)
    assert choice.take == 9
    assert choice.shed == (0,)


def test_the_cap_bounds_the_batch() -> None:
    assert form_batch([INF] * 20, 8, 0.0, line, line).take == 8


def test_a_spare_upstream_saves_those_who_could_go_alone() -> None:
    assert form_batch([1.2] + [100.0] * 9, 32, 0.0, line, line, spare=True).shed == ()


def test_a_busy_upstream_counts_against_the_deadline() -> None:
    assert form_batch([2.0] * 20, 32, 0.0, line, line, backlog_s=0.5).take == 5


def test_when_nobody_can_make_it_everybody_is_shed() -> None:
    assert form_batch([0.5, 0.9], 32, 0.0, line, line) == Choice(0, (0, 1))


def test_mixed_deadlines_in_priority_order_shed_only_the_hopeless() -> None:
    choice = form_batch([50.0, 0.5, 50.0], 32, 0.0, line, line)
    assert choice == Choice(2, (1,))


def test_sizes_are_tried_one_by_one_up_to_32_and_then_in_eighths() -> None:
    assert batch_sizes(5) == (1, 2, 3, 4, 5)
    assert batch_sizes(40) == (*range(1, 33), 36, 40)
    assert batch_sizes(256)[-1] == 256
    assert len(batch_sizes(256)) < 55


@settings(max_examples=100, deadline=None)
@given(deadlines=st.lists(st.floats(0.0, 10.0), max_size=80), cap=st.integers(1, 64))
def test_a_choice_takes_only_what_is_there_and_never_what_it_sheds(deadlines: list[float], cap: int) -> None:
    for choice in (form_batch(deadlines, cap, 0.0, line, line), first_come(deadlines, cap, 0.0, line)):
        assert 0 <= choice.take <= min(cap, len(deadlines) - len(choice.shed))
        assert len(set(choice.shed)) == len(choice.shed)
        assert all(0 <= index < len(deadlines) for index in choice.shed)
        if deadlines:
            assert choice.take or choice.shed


def test_first_come_takes_the_head_and_sheds_the_hopeless_of_it() -> None:
    assert first_come([INF] * 5, 3, 0.0, None) == Choice(3, ())
    assert first_come([0.1, INF, INF, INF], 2, 0.0, line) == Choice(2, (0,))


@settings(max_examples=80, deadline=None)
@given(jobs=st.lists(st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 5.0)), max_size=7))
def test_moore_hodgson_drops_as_few_as_possible(jobs: list[tuple[float, float]]) -> None:
    deadlines, costs = [d for d, _ in jobs], [c for _, c in jobs]

    def feasible(kept: tuple[int, ...]) -> bool:
        finish = 0.0
        for index in sorted(kept, key=deadlines.__getitem__):
            finish += costs[index]
            if finish > deadlines[index] + 1e-9:
                return False
        return True

    dropped = moore_hodgson(deadlines, costs, 0.0)
    kept = tuple(index for index in range(len(jobs)) if index not in dropped)
    assert feasible(kept)
    best = max(n for n in range(len(jobs) + 1) if any(feasible(c) for c in combinations(range(len(jobs)), n)))
    assert len(kept) == pytest.approx(best)


def test_moore_hodgson_drops_the_longest_of_an_infeasible_prefix() -> None:
    assert moore_hodgson([1.0, 2.0, 3.0], [0.5, 2.0, 0.5], 0.0) == (1,)


def test_the_order_is_kept_while_nobody_is_late_by_it() -> None:
    deadlines = [60.0, 9.0, 60.0, 9.0]
    assert form_mixed(deadlines, Choice(2, ()), 0.0, lambda _: 4.0) == Choice(2, ())


def test_soonest_due_first_where_the_order_would_make_somebody_late() -> None:
    deadlines = [60.0, 60.0, 60.0, 60.0, 5.0, 5.0]
    choice = form_mixed(deadlines, Choice(2, ()), 0.0, lambda _: 4.0)
    assert choice.sent(6) == [4, 5]
    assert choice.shed == ()


@given(
    st.lists(st.floats(min_value=1.0, max_value=40.0), min_size=1, max_size=14),
    st.integers(min_value=1, max_value=4),
)
def test_mixed_promises_never_serve_fewer_than_the_order_would(deadlines: list[float], size: int) -> None:
    """Batch after batch until all are served or late, on a server that takes 4 s a batch."""

    def served(mixed: bool) -> int:
        waiting, now, on_time = list(deadlines), 0.0, 0
        while waiting:
            choice = Choice(
                min(size, sum(due >= now + 4.0 for due in waiting)),
                tuple(i for i, due in enumerate(waiting) if due < now + 4.0),
            )
            if mixed:
                choice = form_mixed(waiting, choice, now, lambda _: 4.0)
            going = choice.sent(len(waiting))
            on_time += len(going)
            gone = {*going, *choice.shed}
            waiting = [due for index, due in enumerate(waiting) if index not in gone]
            now += 4.0
        return on_time

    assert served(mixed=True) >= served(mixed=False)
