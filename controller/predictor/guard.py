"""When not to ask the learned model: it fails, or it is late. Whether to believe it is `ladder`'s to say."""

from __future__ import annotations

__all__ = ["Breaker"]


class Breaker:
    """Leaves out a step that fails or is late too often, and tries it again later.

    A failure counts two strikes, a late answer one, a good one takes a fraction off; at `limit` strikes the step is
    left out for the next `rest` calls.
    """

    __slots__ = ("_late_s", "_limit", "_rest", "_resting", "_strikes", "trips")

    def __init__(self, *, late_s: float = 0.001, limit: float = 6.0, rest: int = 500) -> None:
        self._late_s = late_s
        self._limit = limit
        self._rest = rest
        self._strikes = 0.0
        self._resting = 0
        self.trips = 0
        """How often the step was left out."""

    def allow(self) -> bool:
        """Whether to try the step now."""
        if self._resting:
            self._resting -= 1
            return False
        return True

    def took(self, seconds: float) -> None:
        """The step answered, after `seconds`."""
        if seconds > self._late_s:
            self._strike(1.0)
        elif self._strikes:
            self._strikes = max(0.0, self._strikes - 0.1)

    def failed(self) -> None:
        """The step raised, or answered something that is no number."""
        self._strike(2.0)

    def _strike(self, by: float) -> None:
        self._strikes += by
        if self._strikes >= self._limit:
            self._strikes = 0.0
            self._resting = self._rest
            self.trips += 1
