"""The recent ratios between measured and predicted service times, kept sorted."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import log
from typing import Final

__all__ = ["ResidualRing"]

_PRIOR = (0.9, 0.95, 1.0, 1.05, 1.1)
"""What is assumed before enough has been seen."""
_ENOUGH: Final = 8


class ResidualRing:
    """The last `size` ratios measured / predicted, with empirical quantiles.

    No distribution is assumed: service times have straggler mixtures that a fitted normal or lognormal misses by
    half.
    """

    __slots__ = ("_recent", "_size", "_sorted", "_tails")

    def __init__(self, size: int = 120) -> None:
        self._size = size
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._tails: list[float] = []
        """The sum of each of `_sorted` and all above it; empty until somebody asks: many do for one new ratio."""

    def __len__(self) -> int:
        return len(self._recent)

    def add(self, ratio: float) -> None:
        """Keep one ratio; the oldest leaves when the ring is full."""
        self._tails.clear()
        if len(self._recent) == self._size:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._recent.append(ratio)
        insort(self._sorted, ratio)

    def drop_newest(self, count: int) -> None:
        """Take the newest `count` ratios back: the prediction they were measured against was of another time."""
        self._tails.clear()
        for _ in range(min(count, len(self._recent))):
            newest = self._recent.pop()
            del self._sorted[bisect_left(self._sorted, newest)]

    def quantile(self, q: float) -> float:
        """Return the empirical `q`-quantile; of a narrow prior below eight ratios."""
        values: Sequence[float] = self._sorted
        n = len(values)
        if n < _ENOUGH:
            values, n = _PRIOR, len(_PRIOR)
        index = int(q * n)
        return values[index if index < n else n - 1]

    def spread(self) -> float:
        """Return a robust relative standard deviation: half the distance between the 16 % and 84 % quantiles.

        At least 0.02; 0.1 before eight ratios.
        """
        n = len(self._sorted)
        if n < _ENOUGH:
            return 0.1
        return max(0.02, (self._sorted[int(0.84 * (n - 1))] - self._sorted[int(0.16 * (n - 1))]) / 2.0)

    def log_spread(self) -> float:
        """Return the same of the logarithms of the ratios; at least 0.02, and 0.1 before eight ratios."""
        n = len(self._sorted)
        if n < _ENOUGH:
            return 0.1
        return max(0.02, log(self._sorted[int(0.84 * (n - 1))] / self._sorted[int(0.16 * (n - 1))]) / 2.0)

    def mean_excess(self, beyond: float) -> float:
        """Return the mean of (ratio - beyond) over the ratios above `beyond`.

        This is what is left to wait for a call that already took `beyond` of its predicted time (the inspection
        paradox: an overdue call is not about to end). Where nothing so slow was ever seen, a quarter of `beyond`.
        """
        values, tails = self._sorted, self._tails
        start, n = bisect_left(values, beyond), len(values)
        if start == n:
            return 0.25 * beyond
        if not tails:
            total = 0.0
            tails.extend(values)
            for index in range(n - 1, -1, -1):
                total += values[index]
                tails[index] = total
        return tails[start] / (n - start) - beyond
