"""The waiting room's promises, under a clock that moves only when told to."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Job
from policies.registry import create_policy
from proxy.dispatch.queue import Drop, Waiting, WaitQueue
from tests.support.virtual_clock import VirtualClock


class Guest(Waiting):
    __slots__ = ("why",)

    def __init__(self, job: Job, **kwargs: object) -> None:
        super().__init__(job, **kwargs)  # type: ignore[arg-type]
        self.why: Drop | None = None

    def dropped(self, why: Drop) -> None:
        assert self.why is None, "told twice"
        self.why = why


def make_queue(clock: VirtualClock, policy: str = "fcfs", **kwargs: object) -> WaitQueue:
    kwargs.setdefault("max_requests", 1000)
    return WaitQueue(create_policy(policy), clock, **kwargs)  # type: ignore[arg-type]


def guest(clock: VirtualClock, name: str = "g", *, slack: float = 0.0, **kwargs: object) -> Guest:
    return Guest(Job(name, clock.now(), class_slack=slack), **kwargs)


def served(queue: WaitQueue, key: object = "k") -> list[str]:
    names = []
    while (lane := queue.lane(key)) is not None:  # type: ignore[arg-type]
        first = lane.first(1)[0]
        queue.serve(first)
        names.append(first.job.id)
    return names


def test_policy_decides_the_order() -> None:
    clock = VirtualClock()
    queue = make_queue(clock, "priority")
    queue.push(guest(clock, "patient", slack=10.0), "k")
    clock.advance(1.0)
    queue.push(guest(clock, "urgent"), "k")
    assert served(queue) == ["urgent", "patient"]


def test_those_who_wait_in_other_lanes_are_named_as_they_came() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    for name, key in (("a", "k"), ("b", "other"), ("c", "third"), ("d", "k"), ("e", "other")):
        queue.push(guest(clock, name), key)
    for key, names in (("k", "bce"), ("other", "acd"), ("nobody's", "abcde")):
        assert [job.id for job in queue.jobs(besides=key)] == list(names)
    queue.drop_oldest(Drop.SHED)
    assert [job.id for job in queue.jobs(besides="other")] == ["c", "d"]


def test_the_patient_class_goes_first_once_it_has_waited_its_slack() -> None:
    clock = VirtualClock()
    queue = make_queue(clock, "priority")
    queue.push(guest(clock, "patient", slack=10.0), "k")
    clock.advance(10.5)
    queue.push(guest(clock, "urgent"), "k")
    assert served(queue) == ["patient", "urgent"]


def test_whole_queue_is_bounded() -> None:
    clock = VirtualClock()
    queue = make_queue(clock, max_requests=2)
    for _ in range(2):
        assert queue.full_for("default") is None
        queue.push(guest(clock), "k")
    assert queue.full_for("default") == ""


def test_a_class_has_a_bound_of_its_own() -> None:
    clock = VirtualClock()
    queue = make_queue(clock, class_limits={"batch": 1})
    queue.push(guest(clock, klass="batch"), "k")
    assert queue.full_for("batch") == "batch"
    assert queue.full_for("default") is None


def test_lateness_is_noticed_by_a_timer_without_any_dispatch() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    late, patient = guest(clock, deadline=clock.now() + 5.0), guest(clock, deadline=inf)
    queue.push(late, "k")
    queue.push(patient, "k")
    clock.advance(4.9)
    assert late.why is None
    clock.advance(0.2)
    assert late.why is Drop.EXPIRED
    assert patient.why is None
    assert len(queue) == 1


def test_one_timer_however_many_wait() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    for n in range(100):
        queue.push(guest(clock, deadline=clock.now() + 100.0 - n / 10), "k")
    assert clock.pending == 1


def test_those_who_left_are_not_told_that_they_are_late() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    gone = guest(clock, deadline=clock.now() + 1.0)
    queue.push(gone, "k")
    assert queue.cancel(gone)
    clock.advance(2.0)
    assert gone.why is None
    assert not queue.cancel(gone), "leaving twice is harmless"


def test_oldest_is_the_first_arrival_whatever_the_order() -> None:
    clock = VirtualClock()
    queue = make_queue(clock, "priority")
    start = clock.now()
    first = guest(clock, "a", slack=50.0)
    queue.push(first, "k")
    clock.advance(3.0)
    queue.push(guest(clock, "b"), "k")
    assert queue.oldest == start
    queue.serve(first)
    assert queue.oldest == start + 3.0


def test_of_each_class_that_waits_the_first_arrival_is_known() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    start = clock.now()
    first = guest(clock, klass="batch")
    queue.push(first, "k")
    clock.advance(1.0)
    queue.push(guest(clock, klass="default"), "other")
    clock.advance(1.0)
    queue.push(guest(clock, klass="batch"), "k")
    assert queue.oldest_by_class() == {"batch": start, "default": start + 1.0}
    queue.cancel(first)
    assert queue.oldest_by_class() == {"batch": start + 2.0, "default": start + 1.0}


def test_closing_tells_everybody() -> None:
    clock = VirtualClock()
    queue = make_queue(clock)
    guests = [guest(clock, str(n)) for n in range(5)]
    for one in guests:
        queue.push(one, one.job.id)
    queue.drop_all(Drop.CLOSED)
    assert [one.why for one in guests] == [Drop.CLOSED] * 5
    assert len(queue) == 0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 2), st.integers(1, 5), st.floats(0.1, 9.0)),
        st.tuples(st.just("serve"), st.integers(0, 2), st.just(0), st.just(0.0)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0), st.just(0.0)),
        st.tuples(st.just("wait"), st.just(0), st.just(0), st.floats(0.0, 3.0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", ["fcfs", "priority", "sjf", "edf", "fair"])
@given(steps=STEPS)
@settings(max_examples=40, deadline=None)
def test_counts_are_the_truth_and_everybody_leaves_exactly_once(policy: str, steps: list[tuple]) -> None:
    clock = VirtualClock()
    queue = make_queue(clock, policy)
    inside: list[Guest] = []
    left: set[str] = set()
    for number, (what, a, b, c) in enumerate(steps):
        if what == "push":
            one = guest(clock, str(number), items=b, tokens=float(b) * 1.1, klass=f"c{a}", deadline=clock.now() + c)
            queue.push(one, a)
            inside.append(one)
        elif what == "serve" and (lane := queue.lane(a)) is not None:
            one = lane.first(1)[0]
            queue.serve(one)
            inside.remove(one)
            left.add(one.job.id)
        elif what == "cancel" and inside:
            one = inside.pop(a % len(inside))
            assert queue.cancel(one)
            left.add(one.job.id)
        elif what == "wait":
            clock.advance(c)
            for one in [g for g in inside if g.why is not None]:
                assert one.deadline <= clock.now()
                inside.remove(one)
                left.add(one.job.id)
        assert all(g.deadline > clock.now() - 1e-9 for g in inside), "somebody overstayed"
        assert len(queue) == len(inside)
        assert queue.items == sum(g.items for g in inside)
        assert queue.tokens == pytest.approx(sum(g.tokens for g in inside))
        assert sum(queue.by_class.values()) == len(inside)
    queue.drop_all(Drop.CLOSED)
    assert (len(queue), queue.items, queue.tokens, dict(queue.by_class)) == (0, 0, 0.0, {})
