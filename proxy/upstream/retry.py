"""How many second tries a pool may afford."""

from __future__ import annotations

__all__ = ["RetryBudget"]


class RetryBudget:
    """A bucket that every request fills by `ratio` and every retry empties by one.

    `min_per_s` keeps it from running dry at low rates. The bucket holds at most ten seconds of the minimum or
    ten tries, whichever is more, so a quiet hour does not pay for a storm.
    """

    __slots__ = ("_cap", "_min_per_s", "_ratio", "_seen", "_tokens")

    def __init__(self, *, ratio: float, min_per_s: float, now: float) -> None:
        self._ratio = ratio
        self._min_per_s = min_per_s
        self._cap = max(10.0, 10.0 * min_per_s) if ratio > 0.0 or min_per_s > 0.0 else 0.0
        self._tokens = min(self._cap, max(1.0, min_per_s)) if self._cap else 0.0
        self._seen = now

    def request(self) -> None:
        """A first try was sent."""
        tokens = self._tokens + self._ratio
        self._tokens = tokens if tokens < self._cap else self._cap

    def take(self, now: float) -> bool:
        """Whether one more retry may be sent; if so it is paid for."""
        self._tokens = min(self._cap, self._tokens + (now - self._seen) * self._min_per_s)
        self._seen = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
