"""A clock that moves only when told to."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["VirtualClock"]


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Runs timers in order of time, then of creation; each sees the time it was set for."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start
        self._timers: list[tuple[float, int, _Timer]] = []
        self._serial = count()

    def now(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._serial), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, running every timer that comes due on the way."""
        end = self._now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback()
        self._now = end

    @property
    def pending(self) -> int:
        """Timers that are set."""
        return sum(timer.callback is not None for _, _, timer in self._timers)

    @property
    def next_at(self) -> float | None:
        """When the next timer rings."""
        live = [when for when, _, timer in self._timers if timer.callback is not None]
        return min(live, default=None)
