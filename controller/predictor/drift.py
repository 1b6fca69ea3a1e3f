"""Noticing that yesterday's answers no longer tell today's lengths, and judging a new model before it serves."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

__all__ = ["CoverageMonitor", "PageHinkley", "Verdict", "Watch", "Watches", "accept"]


class PageHinkley:
    """Two-sided Page-Hinkley test on a signed residual (Page, 1954; Hinkley, 1971).

    With m the running mean and x the residual over its running mean deviation, clipped to +-3:
    U += x - m - delta and D += m - x - delta, both kept at or above 0; a change is declared when either exceeds
    `threshold`. Lengths are noisy (deviation about 1 in natural log), so residuals are scaled first: with delta 0.1
    and threshold 60 independent outcomes practically never alarm, and a doubling is seen within about 90.
    """

    __slots__ = ("_delta", "_down", "_mean", "_spread", "_threshold", "_up", "n")

    def __init__(self, *, delta: float = 0.1, threshold: float = 60.0) -> None:
        self._delta = delta
        self._threshold = threshold
        self.n = 0
        self._mean = self._up = self._down = 0.0
        self._spread = 1.0

    def observe(self, residual: float) -> bool:
        """Take in one residual; True when a change is declared, and then the test starts over."""
        self.n += 1
        scaled = max(-3.0, min(3.0, residual / max(self._spread, 1e-3)))
        self._spread += 0.02 * (1.25 * abs(residual) - self._spread)
        self._mean += (scaled - self._mean) / self.n
        self._up = max(0.0, self._up + scaled - self._mean - self._delta)
        self._down = max(0.0, self._down + self._mean - scaled - self._delta)
        if max(self._up, self._down) <= self._threshold:
            return False
        self.n = 0
        self._mean = self._up = self._down = 0.0
        return True


class CoverageMonitor:
    """Alarm while the share covered over the newest `window` outcomes is outside `low` to `high`."""

    __slots__ = ("_covered", "_high", "_low", "_ring")

    def __init__(self, *, window: int = 200, low: float = 0.85, high: float = 0.95) -> None:
        self._ring: deque[bool] = deque(maxlen=window)
        self._low, self._high = low, high
        self._covered = 0

    def observe(self, covered: bool) -> None:
        """Take in one outcome."""
        if len(self._ring) == self._ring.maxlen:
            self._covered -= self._ring[0]
        self._ring.append(covered)
        self._covered += covered

    @property
    def alarm(self) -> bool:
        """Whether a full window lies outside the band."""
        return len(self._ring) == self._ring.maxlen and not self._low <= self._covered / len(self._ring) <= self._high


class Watch:
    """What is watched of one (model, route)."""

    __slots__ = ("coverage", "drifts", "test")

    def __init__(self) -> None:
        self.test = PageHinkley()
        self.coverage = CoverageMonitor()
        self.drifts = 0


class Watches:
    """A watch for each (model, route), at most `capacity`; the least recently used leave."""

    def __init__(self, *, capacity: int = 256) -> None:
        self._capacity = capacity
        self._watches: OrderedDict[tuple[str, str], Watch] = OrderedDict()

    def observe(self, model: str, route: str, residual: float, covered: bool) -> bool:
        """Take in one outcome; True when its lengths are found to have changed for good."""
        watch = self._watches.get((model, route))
        if watch is None:
            watch = self._watches[model, route] = Watch()
            if len(self._watches) > self._capacity:
                self._watches.popitem(last=False)
        else:
            self._watches.move_to_end((model, route))
        watch.coverage.observe(covered)
        drifted = watch.test.observe(residual)
        watch.drifts += drifted
        return drifted

    @property
    def drifts(self) -> int:
        """Changes found so far, in what is still watched."""
        return sum(watch.drifts for watch in self._watches.values())

    def alarms(self) -> list[tuple[str, str]]:
        """Return where the ninth decile does not cover what it should."""
        return [key for key, watch in self._watches.items() if watch.coverage.alarm]


class Verdict(NamedTuple):
    """Whether a new model may serve, and why."""

    accepted: bool
    reason: str


def accept(new: float, old: float, *, tolerance: float = 0.02) -> Verdict:
    """Judge a new model by its quantile loss on rows neither has seen, beside the one in service or the constant."""
    if not new >= 0.0:
        return Verdict(False, f"the new model's loss is {new}")
    if new <= old * (1.0 + tolerance):
        return Verdict(True, f"loss {new:.4g} against {old:.4g}")
    return Verdict(False, f"loss {new:.4g}, more than {tolerance:.0%} worse than {old:.4g}")
