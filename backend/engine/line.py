"""The waiting line: whoever lost its blocks first, then newcomers in the policy's order."""

from __future__ import annotations

from collections.abc import Iterator

from backend.engine.sequence import Sequence
from policies import JobHeap

__all__ = ["WaitingLine"]


class WaitingLine:
    """Two heaps over the policy's keys. A preempted sequence goes ahead of every newcomer.

    That keeps the policy from being undone by memory pressure: what was admitted was admitted in the policy's
    order, and is not passed by something that came later just because it lost its blocks meanwhile.
    """

    def __init__(self, max_skip: int = 0) -> None:
        """Let up to `max_skip` newcomers that do not fit be passed over for later ones that do."""
        self._max_skip = max_skip
        self._resumed: JobHeap[Sequence] = JobHeap()
        self._newcomers: JobHeap[Sequence] = JobHeap()

    def __len__(self) -> int:
        return len(self._resumed) + len(self._newcomers)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._resumed
        yield from self._newcomers

    @property
    def head(self) -> Sequence | None:
        """Who is next, or None."""
        if self._resumed:
            return self._resumed.peek()
        return self._newcomers.peek() if self._newcomers else None

    def push(self, sequence: Sequence) -> None:
        """Queue a newcomer, or a sequence that was admitted before and is to be resumed."""
        heap = self._resumed if sequence.admitted else self._newcomers
        sequence.handle = heap.push(sequence.key, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take `sequence` out, wherever it stands; does nothing when it is not in the line."""
        if sequence.handle is not None:
            (self._resumed if sequence.admitted else self._newcomers).remove(sequence.handle)
            sequence.handle = None

    def candidates(self) -> list[Sequence]:
        """Return who may be admitted now, in order: the head and those for whom it may be passed over.

        A preempted head is never passed over, and a newcomer at most `max_skip` times in its life: sequences that
        need much room would otherwise wait for ever behind a stream of small ones.
        """
        if self._resumed:
            return [self._resumed.peek()]
        chosen: list[Sequence] = []
        for handle in self._newcomers.first(self._max_skip + 1):
            chosen.append(handle.item)
            if handle.item.passed_over >= self._max_skip:
                break
        return chosen
