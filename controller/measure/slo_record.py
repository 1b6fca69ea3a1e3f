"""How a pool's promises were kept: the last minute's latencies and counts, and what was spent of error budgets."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from controller.measure.error_budget import ErrorBudget
from controller.measure.latency import LatencyWindow
from controller.measure.promises import Promises
from controller.observation import Observation, Result

__all__ = ["SloRecord"]

_KEPT: Final = 4096
"""Requests that can be judged again when a promise changes."""
_OK: Final = Result.OK
_TIMEOUT: Final = Result.TIMEOUT


class SloRecord:
    """Counts every finished request against the promise of its class. `now` is when counting begins."""

    def __init__(self, now: float) -> None:
        self.window = LatencyWindow()
        self._kept: deque[Observation] = deque(maxlen=_KEPT)
        self._budgets: dict[str, ErrorBudget] = {}
        self._started = now

    def add(self, obs: Observation, promises: Promises) -> tuple[str, ...]:
        """Count one finished request; returns the targets it missed."""
        klass, result = obs.klass, obs.result
        missed = self.window.add(obs, promises.of(klass))
        if result is _OK or result is _TIMEOUT:
            spent = self._budgets.get(klass)
            if spent is None:
                spent = self._budgets[klass] = ErrorBudget(self._started)
            spent.add(obs.done, bool(missed))
        self._kept.append(obs)
        return missed

    def recount(self, promises: Promises, now: float) -> None:
        """Judge the last minute's requests again, by other promises. What was spent of a budget stays spent."""
        self.window = LatencyWindow()
        for obs in self._kept:
            if now - obs.done <= self.window.window_s:
                self.window.add(obs, promises.of(obs.klass))

    def budgets(self, promises: Promises, now: float) -> dict[str, Any]:
        """Return what each class spent of its error budget, by name, JSON-ready."""
        return {
            klass: spent.as_dict(now, promises.of(klass).quantile) for klass, spent in sorted(self._budgets.items())
        }

    def whole_budget(self, promises: Promises, now: float) -> dict[str, Any]:
        """Return what all classes together spent of the pool's error budget, JSON-ready."""
        return ErrorBudget.total(self._budgets.values(), self._started).as_dict(now, promises.pool.quantile)
