"""A binary heap whose entries can be removed from the middle in O(log n)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ["Handle", "JobHeap"]

T = TypeVar("T")


class Handle(Generic[T]):
    """A queued item's place in its heap; pass it to `JobHeap.remove`."""

    __slots__ = ("index", "item", "key", "seq")

    def __init__(self, key: float, seq: int, item: T) -> None:
        self.key = key
        self.seq = seq
        self.item = item
        self.index = -1

    def __lt__(self, other: Handle[T]) -> bool:
        return self.key < other.key or (self.key == other.key and self.seq < other.seq)


def _place_in_order(handle: Handle[Any]) -> tuple[float, int]:
    return handle.key, handle.seq


class JobHeap(Generic[T]):
    """Items in ascending key order; equal keys keep the order in which they were pushed.

    `push` and `remove` are O(log n), `peek` and `len` are O(1); `first` finds the k smallest in
    O(k log k) and leaves the heap as it was; `remove_all` takes k out in O(min(n, k log n)).
    """

    __slots__ = ("_entries", "_seq")

    def __init__(self) -> None:
        self._entries: list[Handle[T]] = []
        self._seq = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[T]:
        """Iterate in heap order, which is not sorted; for a sorted walk use `first`."""
        return iter([entry.item for entry in self._entries])

    def push(self, key: float, item: T) -> Handle[T]:
        """Queue `item` under `key` and return its handle."""
        handle = Handle(key, self._seq, item)
        self._seq += 1
        handle.index = len(self._entries)
        self._entries.append(handle)
        self._up(handle.index)
        return handle

    def peek(self) -> T:
        """Return the smallest item without removing it. Raises IndexError when empty."""
        return self._entries[0].item

    def remove(self, handle: Handle[T]) -> bool:
        """Remove `handle` wherever it is. Returns False when it had left before: removing is idempotent."""
        index = handle.index
        if index < 0:
            return False
        handle.index = -1
        last = self._entries.pop()
        if last is not handle:
            self._entries[index] = last
            last.index = index
            self._up(index)
            self._down(last.index)
        return True

    def remove_all(self, handles: Sequence[Handle[T]]) -> None:
        """Remove all of `handles` that are still there; many at once cost less than one by one."""
        entries = self._entries
        if len(handles) * len(entries).bit_length() < len(entries):
            for handle in handles:
                self.remove(handle)
            return
        for handle in handles:
            handle.index = -1
        entries[:] = [entry for entry in entries if entry.index >= 0]
        for index, entry in enumerate(entries):
            entry.index = index
        for index in range(len(entries) // 2 - 1, -1, -1):
            self._down(index)

    def first(self, limit: int | None = None) -> list[Handle[T]]:
        """Return handles in ascending order, at most `limit` of them."""
        entries = self._entries
        if limit is None or limit >= len(entries):
            return sorted(entries, key=_place_in_order)
        found: list[Handle[T]] = []
        frontier: list[tuple[Handle[T], int]] = [(entries[0], 0)] if entries else []
        while frontier and len(found) < limit:
            handle, index = heappop(frontier)
            found.append(handle)
            for child in (2 * index + 1, 2 * index + 2):
                if child < len(entries):
                    heappush(frontier, (entries[child], child))
        return found

    def _up(self, index: int) -> None:
        entries = self._entries
        handle = entries[index]
        while index > 0:
            parent = (index - 1) >> 1
            above = entries[parent]
            if not handle < above:
                break
            entries[index] = above
            above.index = index
            index = parent
        entries[index] = handle
        handle.index = index

    def _down(self, index: int) -> None:
        entries = self._entries
        size = len(entries)
        handle = entries[index]
        while True:
            child = 2 * index + 1
            if child >= size:
                break
            if child + 1 < size and entries[child + 1] < entries[child]:
                child += 1
            below = entries[child]
            if not below < handle:
                break
            entries[index] = below
            below.index = index
            index = child
        entries[index] = handle
        handle.index = index
