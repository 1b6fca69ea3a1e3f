"""Quantiles of a stream in constant memory, mergeable across workers and time slices."""

from __future__ import annotations

import math
from math import ceil, log
from typing import Final

__all__ = ["Sketch", "SlidingSketch"]

_SMALLEST: Final = 1e-6
"""Values below this (a microsecond) share one bucket."""


class Sketch:
    """DDSketch (Masson, Rim and Lee, VLDB 2019): every quantile is within `alpha` of the true one, relatively.

    A value x falls into bucket ceil(ln x / ln gamma) with gamma = (1 + alpha) / (1 - alpha), and bucket i is read
    back as 2 gamma^i / (gamma + 1). Merging adds bucket counts and loses nothing.
    """

    __slots__ = ("_buckets", "_gamma", "_log_gamma", "_low", "alpha", "count", "maximum", "minimum", "total")

    def __init__(self, alpha: float = 0.01) -> None:
        if not 0.0 < alpha < 1.0:
            raise ValueError(f"the relative error lies in (0, 1), not {alpha}")
        self.alpha = alpha
        self._gamma = (1.0 + alpha) / (1.0 - alpha)
        self._log_gamma = math.log(self._gamma)
        self._buckets: dict[int, int] = {}
        self._low = 0
        self.count = 0
        self.total = 0.0
        self.minimum = math.inf
        self.maximum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` (seconds, not negative)."""
        self.count += times
        self.total += value * times
        if value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value
        if value < _SMALLEST:
            self._low += times
            return
        index = ceil(log(value) / self._log_gamma)
        buckets = self._buckets
        if index in buckets:
            buckets[index] += times
        else:
            buckets[index] = times

    def merge(self, other: Sketch) -> None:
        """Add the counts of `other`. Raises ValueError when the two have different errors."""
        if other.alpha != self.alpha:
            raise ValueError(f"sketches of different relative error do not merge: {self.alpha} and {other.alpha}")
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count
        self._low += other._low
        self.count += other.count
        self.total += other.total
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)

    def copy(self) -> Sketch:
        """Return another one with the same counts."""
        other = Sketch(self.alpha)
        other._buckets = self._buckets.copy()
        other._low, other.count, other.total = self._low, self.count, self.total
        other.minimum, other.maximum = self.minimum, self.maximum
        return other

    def at_ranks(self, ranks: tuple[int, ...]) -> list[float]:
        """Return the values at ascending 1-based `ranks`. Raises ValueError when empty."""
        if not self.count:
            raise ValueError("an empty sketch has no quantiles")
        found: list[float] = []
        seen = self._low
        indices = iter(sorted(self._buckets))
        value = 0.0
        for rank in ranks:
            wanted = max(1, min(self.count, rank))
            while seen < wanted:
                index = next(indices)
                seen += self._buckets[index]
                value = 2.0 * self._gamma**index / (self._gamma + 1.0)
            found.append(min(self.maximum, max(self.minimum, value)))
        return found


class SlidingSketch:
    """The last `window_s` seconds of a stream: a ring of sub-sketches, merged when asked.

    The oldest slice leaves as a whole, so between `window_s * (slices - 1) / slices` and `window_s` seconds are
    covered. Only the slice that was asked for last changes, so the others are merged once and not with each look.
    """

    __slots__ = ("_alpha", "_open", "_settled", "_sketches", "_slice_s", "_slices")

    def __init__(self, window_s: float = 60.0, slices: int = 10, alpha: float = 0.01) -> None:
        if not window_s > 0.0 or slices < 1:
            raise ValueError(f"a sliding window needs a length and at least one slice, not {window_s} s and {slices}")
        self._alpha = alpha
        self._slices = slices
        self._slice_s = window_s / slices
        self._sketches: dict[int, Sketch] = {}
        self._open: int | None = None
        """The slice that was asked for last: whoever did may go on adding to it."""
        self._settled: Sketch | None = None
        """All slices but `_open`, merged; None when they have to be merged anew."""

    def at(self, index: int) -> Sketch:
        """Return the sub-sketch of slice `index`, which begins `index` slices after the clock's zero.

        Add to it only until the next call.
        """
        sketch = self._sketches.get(index)
        if sketch is None:
            self._expire(index)
            sketch = self._sketches[index] = Sketch(self._alpha)
        if index != self._open:
            self._open, self._settled = index, None
        return sketch

    def merged(self, now: float) -> Sketch:
        """Return one sketch of everything in the window."""
        self._expire(int(now // self._slice_s))
        if self._settled is None:
            self._settled = Sketch(self._alpha)
            for index, sketch in self._sketches.items():
                if index != self._open:
                    self._settled.merge(sketch)
        merged = self._settled.copy()
        newest = None if self._open is None else self._sketches.get(self._open)
        if newest is not None:
            merged.merge(newest)
        return merged

    def _expire(self, index: int) -> None:
        for old in [key for key in self._sketches if key <= index - self._slices]:
            del self._sketches[old]
            self._settled = None
