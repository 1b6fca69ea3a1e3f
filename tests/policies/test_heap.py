"""The heap against the simplest thing that could be right: a sorted list."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies import Handle, JobHeap


class HeapMachine(RuleBasedStateMachine):
    """Pushes, pops, removes and restores, all mirrored in a sorted list of (key, sequence number)."""

    def __init__(self) -> None:
        super().__init__()
        self.heap: JobHeap[int] = JobHeap()
        self.model: list[tuple[float, int]] = []
        self.handles: list[Handle[int]] = []

    @rule(key=st.one_of(st.integers(0, 5), st.floats(-10, 10)))
    def push(self, key: float) -> None:
        handle = self.heap.push(key, len(self.handles))
        assert handle.queued
        self.handles.append(handle)
        insort(self.model, (key, handle.seq))

    @precondition(lambda self: self.model)
    @rule()
    def pop(self) -> None:
        _, seq = self.model.pop(0)
        assert self.heap.peek() == seq
        assert self.heap.pop() == seq
        assert not self.handles[seq].queued

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        queued = handle.queued
        assert self.heap.remove(handle) is queued
        assert not handle.queued
        if queued:
            self.model.remove((handle.key, handle.seq))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def remove_all(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(self.handles), unique=True))
        left = [(handle.key, handle.seq) for handle in gone if handle.queued]
        self.heap.remove_all(gone)
        assert not any(handle.queued for handle in gone)
        for place in left:
            self.model.remove(place)

    @precondition(lambda self: any(not handle.queued for handle in self.handles))
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from([handle for handle in self.handles if not handle.queued]))
        self.heap.restore(handle)
        insort(self.model, (handle.key, handle.seq))

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


def test_what_is_queued_cannot_be_restored_twice() -> None:
    heap: JobHeap[str] = JobHeap()
    handle = heap.push(1.0, "a")
    with pytest.raises(ValueError, match="still queued"):
        heap.restore(handle)


def test_an_empty_heap_has_nothing_to_give() -> None:
    heap: JobHeap[str] = JobHeap()
    assert heap.first() == []
    with pytest.raises(IndexError):
        heap.peek()
    with pytest.raises(IndexError):
        heap.pop()
