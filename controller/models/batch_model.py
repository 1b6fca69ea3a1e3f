"""The service time of a whole batch: by its size, and where answers differ in length by its longest answer."""

from __future__ import annotations

import math
from typing import Any

from controller.models.lengths import LengthRing
from controller.models.service_model import ServiceModel

__all__ = ["BatchModel"]


class _Offset:
    """What a call costs beside its tokens, in tokens: S = pace(b) * (offset + longest), offset by regression.

    Of u = S / pace(b) on the longest length, slope m and intercept k: the offset is k / m.
    """

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y", "value")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        self.value = 0.0

    def add(self, longest: float, tokens_worth: float) -> None:
        forget = 0.99
        self._n = forget * self._n + 1.0
        self._x = forget * self._x + longest
        self._y = forget * self._y + tokens_worth
        self._xx = forget * self._xx + longest * longest
        self._xy = forget * self._xy + longest * tokens_worth
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if self._n >= 10.0 and variance > 0.01 * mean_x * mean_x:
            slope = (self._xy / self._n - mean_x * mean_y) / variance
            if slope > 0.1:
                target = max(0.0, min(2.0 * mean_x, (mean_y - slope * mean_x) / slope))
                self.value += 0.1 * (target - self.value)


class BatchModel:
    """Predicts S(b) for upstreams that take whole batches.

    Two views of the same calls: `whole` knows only the size; `paced` divides by the longest answer of the batch, and
    puts the distribution of the longest of b back in (`LengthRing`). Where answers differ in length the second is
    sharper by far, and knows sizes that were never tried; it is followed while it is the better one.
    """

    def __init__(self, late_target: float = 0.01) -> None:
        self.whole = ServiceModel(late_target)
        self.paced = ServiceModel(late_target)
        self.lengths = LengthRing()
        self._offset = _Offset()
        self._errors = [0.0, 0.0]

    @property
    def late_target(self) -> float:
        """The late share that the quantile is corrected towards."""
        return self.whole.late_target

    @late_target.setter
    def late_target(self, share: float) -> None:
        self.whole.late_target = share

    @property
    def samples(self) -> int:
        """Calls seen."""
        return self.whole.samples

    @property
    def identified(self) -> bool:
        """Whether there is enough to predict from."""
        return self.paced.identified if self.by_length else self.whole.identified

    @property
    def last_seconds(self) -> float:
        """The last call's time; 0 before any."""
        return self.whole.last_seconds or 0.0

    @property
    def by_length(self) -> bool:
        """Whether the longest answer is taken into account."""
        return self.paced.samples >= 16 and self._errors[1] < 0.7 * self._errors[0] and self.lengths.varies()

    def observe(self, size: int, seconds: float, now: float, lengths: list[int]) -> None:
        """Learn from one call; `lengths` are the output tokens of its answers, empty when unknown."""
        longest = max(lengths, default=0)
        if longest > 0:
            tokens = self._offset.value + longest
            if self.paced.samples >= 8:
                error = math.log(seconds / (self.paced.predict(size) * tokens))
                plain = math.log(seconds / self.whole.predict(size))
                self._errors[0] = 0.95 * self._errors[0] + plain * plain
                self._errors[1] = 0.95 * self._errors[1] + error * error
                self._offset.add(longest, seconds / self.paced.predict(size))
            if self.paced.observe(size, seconds / tokens, now) and self.by_length:
                self.whole.excuse()
            for length in lengths:
                self.lengths.add(length)
        self.whole.observe(size, seconds, now)

    def late(self, share: float, weight: float = 1.0) -> None:
        """Correct the quantile by the share of late requests."""
        self.whole.late(share, weight)

    def predict(self, size: int) -> float:
        """Return the expected service time in seconds."""
        if not self.by_length:
            return self.whole.predict(size)
        return self.paced.predict(size) * (self._offset.value + self.lengths.mean_largest(size))

    def quantile_s(self, size: int) -> float:
        """Return a service time that about `theta` of the calls stay within, in seconds.

        Two independent sources of spread, the pace and the longest length; their deviations (log) add in square.
        """
        if not self.by_length:
            return self.whole.quantile_s(size)
        theta, offset = self.whole.theta, self._offset.value
        usual = offset + self.lengths.mean_largest(size)
        pace = math.log(self.paced.expert.residuals.quantile(theta))
        length = math.log((offset + self.lengths.largest(size, theta)) / usual)
        both = math.hypot(pace, length) if pace > 0.0 and length > 0.0 else pace + length
        return self.paced.predict(size) * usual * math.exp(both)

    def remaining_s(self, size: int, elapsed_s: float) -> float:
        """Return how long a call that has run for `elapsed_s` will still take on average, seconds."""
        if not self.by_length:
            return self.whole.remaining_s(size, elapsed_s)
        pace = self.paced.predict(size)
        left = [pace * (self._offset.value + longest) - elapsed_s for longest in self.lengths.spread(size)]
        ahead = [seconds for seconds in left if seconds > 0.0]
        return sum(ahead) / len(ahead) if ahead else 0.25 * elapsed_s

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        shown = self.whole.as_dict() | {"by_length": self.by_length, "identified": self.identified}
        if self.by_length:
            shown["predicted_ms"] = {str(b): 1000.0 * self.predict(b) for b in (1, 2, 4, 8, 16, 32)}
        return shown
