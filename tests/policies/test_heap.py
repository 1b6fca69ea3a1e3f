"""The heap against the simplest thing that could be right: a sorted list."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies import Handle, JobHeap
from tests.policies.simulation import take


class HeapMachine(RuleBasedStateMachine):
    """Pushes and removes, all mirrored in a sorted list of (key, sequence number)."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: JobHeap[int] = JobHeap()
        self.model: list[tuple[float, int]] = []
        self.handles: list[Handle[int]] = []

    @rule(key=st.one_of(st.integers(0, 5), st.floats(-10, 10)))
    def push(self, key: float) -> None:
        handle = self.heap.push(key, len(self.handles))
        self.handles.append(handle)
        insort(self.model, (key, handle.seq))

    @precondition(lambda self: self.model)
    @rule()
    def take(self) -> None:
        _, seq = self.model.pop(0)
        assert self.heap.peek() == seq
        assert take(self.heap) == seq

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        place = (handle.key, handle.seq)
        queued = place in self.model
        assert self.heap.remove(handle) is queued
        assert not self.heap.remove(handle)
        if queued:
            self.model.remove(place)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def remove_all(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.handles), unique=True))
        places = {(handle.key, handle.seq) for handle in gone}
        self.heap.remove_all(gone)
        self.model = [place for place in self.model if place not in places]

    @rule(limit=st.one_of(st.none(), st.integers(0, 8)))
    def first(self, limit: int | None) -> None:
        walked = [(handle.key, handle.seq) for handle in self.heap.first(limit)]
        assert walked == self.model[:limit]

    @invariant()
    def same_members(self) -> None:
        assert len(self.heap) == len(self.model)
        assert bool(self.heap) is bool(self.model)
        assert sorted(self.heap) == sorted(seq for _, seq in self.model)


HeapMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHeapAgainstSortedList = HeapMachine.TestCase


def test_an_empty_heap_has_nothing_to_give() -> None:
    heap: JobHeap[str] = JobHeap()
    assert heap.first() == []
    with pytest.raises(IndexError):
        heap.peek()
