"""How long answers are, and how long the longest of several."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Final

__all__ = ["LengthRing"]

_LEVELS: Final = 24
_REFRESH: Final = 16


class LengthRing:
    """The last 400 output lengths, and the distribution of the largest of b of them.

    A batch that is answered at its end takes as long as its longest member. With F the distribution of one length,
    the largest of b independent ones is below x with probability F(x)^b, so its u-quantile is the u^(1/b)-quantile of
    one. That holds for sizes that were never tried.
    """

    __slots__ = ("_added", "_recent", "_size", "_sorted", "_tables")

    def __init__(self, size: int = 400) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._tables: dict[int, tuple[float, ...]] = {}
        self._added = 0

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, length: float) -> None:
        """Keep one length, in tokens."""
        if len(self._recent) == self._size:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(length)
        insort(self._sorted, length)
        self._added += 1
        if self._added % _REFRESH == 0 or len(self._recent) < 2 * _REFRESH:
            self._tables.clear()

    def varies(self) -> bool:
        """Whether lengths differ enough to matter: the ninth decile is at least 1.3 times the lower quartile."""
        low = self.quantile(0.25)
        return low > 0.0 and self.quantile(0.9) >= 1.3 * low

    def quantile(self, q: float) -> float:
        """Return the `q`-quantile of one length; 0 before any."""
        n = len(self._sorted)
        return self._sorted[min(n - 1, int(q * n))] if n else 0.0

    def largest(self, count: int, q: float) -> float:
        """Return the `q`-quantile of the largest of `count` lengths."""
        return self.quantile(q ** (1.0 / count))

    def spread(self, count: int) -> tuple[float, ...]:
        """Return the largest of `count` lengths at 24 equally likely levels, ascending."""
        table = self._tables.get(count)
        if table is None:
            table = self._tables[count] = tuple(
                self.largest(count, (level + 0.5) / _LEVELS) for level in range(_LEVELS)
            )
        return table

    def mean_largest(self, count: int) -> float:
        """Return the mean of the largest of `count` lengths."""
        table = self.spread(count)
        return sum(table) / len(table)
