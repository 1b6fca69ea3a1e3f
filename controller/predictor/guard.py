"""When not to listen to the learned model: it fails, it is late, or it is worse than saying the usual length."""

from __future__ import annotations

from controller.predictor.calibration import pinball

__all__ = ["Breaker", "Contest"]


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


class Contest:
    """Exponentially weighted quantile loss of the learned median beside the constant's, for one model.

    The learned median takes part even while it is not listened to, so that it can win its place back.
    """

    __slots__ = ("_baseline", "_candidate", "_keep", "n")

    def __init__(self, *, keep: float = 0.995) -> None:
        self._keep = keep
        self._candidate = self._baseline = 0.0
        self.n = 0

    def observe(self, candidate: float, baseline: float, actual: float) -> None:
        """Take in one outcome, all in tokens."""
        self.n += 1
        self._candidate = self._keep * self._candidate + pinball(actual, candidate, 0.5)
        self._baseline = self._keep * self._baseline + pinball(actual, baseline, 0.5)

    @property
    def lost(self) -> bool:
        """Whether the learned median is more than 2 % worse, over 200 outcomes or more."""
        return self.n >= 200 and self._candidate > 1.02 * self._baseline
