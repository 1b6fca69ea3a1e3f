"""A bounded table of what was used last, which never takes long: not to grow, not to shrink, not to be read out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Generic, TypeVar

__all__ = ["Recent"]

V = TypeVar("V")

_PIECE = 64
"""Entries that a piece holds at least, so that what leaves it is old."""

_PIECES = 1024


class Recent(Generic[V]):
    """Values by hashed key, at most `capacity`; what was not used for long leaves.

    A dictionary that grows moves all its entries at once, a millisecond for ten thousand. So the keys, which must be
    evenly spread in their lowest bits, are divided among up to 1,024 dictionaries that grow one by one. Room is made
    in each of them in turn: what leaves is the least recently used of its piece. Below 128 there is one piece, and
    then that is the least recently used of all.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._pieces: list[OrderedDict[int, V]] = [OrderedDict()]
        self._size = 0
        self._hand = 0
        self.resize(capacity)

    def __len__(self) -> int:
        return self._size

    def get(self, key: int) -> V | None:
        """Return what is known under `key`."""
        return self._pieces[key & self._mask].get(key)

    def use(self, key: int) -> V | None:
        """Return what is known under `key`, marking it as used."""
        piece = self._pieces[key & self._mask]
        value = piece.get(key)
        if value is not None:
            piece.move_to_end(key)
        return value

    def put(self, key: int, value: V) -> None:
        """Keep `value` under `key` from now on, as the one used last."""
        piece = self._pieces[key & self._mask]
        if key in piece:
            piece[key] = value
            piece.move_to_end(key)
            return
        # First the room, then the newcomer: it must not be what leaves. Two at a time bring down a smaller capacity.
        for _ in range(min(2, self._size + 1 - self._capacity)):
            self._leave()
        piece[key] = value
        self._size += 1

    def resize(self, capacity: int) -> None:
        """Keep at most `capacity` from now on; the surplus leaves a few at a time."""
        self._capacity = capacity
        pieces = 1
        while pieces < _PIECES and capacity >= 2 * pieces * _PIECE:
            pieces *= 2
        self._mask = pieces - 1
        if pieces != len(self._pieces):
            former, self._pieces = self._pieces, [OrderedDict() for _ in range(pieces)]
            for key, value in chain.from_iterable(piece.items() for piece in former):
                self._pieces[key & self._mask][key] = value

    def newest(self, limit: int) -> Iterator[list[int]]:
        """Yield the keys used last, in lists of at most 64 with the newest last: of each piece its share of `limit`.

        The table may change between two of them.
        """
        share = min(1.0, limit / max(1, self._size))
        for piece in list(self._pieces):
            kept = list(islice(reversed(piece), round(share * len(piece))))[::-1]
            for start in range(0, len(kept), 64):
                yield kept[start : start + 64]

    def _leave(self) -> None:
        while not self._pieces[self._hand & self._mask]:
            self._hand += 1
        self._pieces[self._hand & self._mask].popitem(last=False)
        self._hand += 1
        self._size -= 1
