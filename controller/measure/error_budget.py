"""How much of what may go wrong has gone wrong: attainment and burn rate over hours, in bounded memory.

A promise for 99 % of the requests allows 1 % to be late; that 1 % is the error budget. A burn rate of 1 uses up
exactly the budget of a window in that window; 14.4 uses up two per cent of a month's in an hour, which is when
Google's SRE workbook (2018, chapter 5) wakes somebody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Any, Final, NamedTuple

__all__ = ["WINDOWS", "ErrorBudget", "Spent"]

WINDOWS = (("1h", 3600.0), ("6h", 21_600.0), ("24h", 86_400.0))
"""What is reported; the last one is the period that `remaining` is about."""
_SLICE_S: Final = 60.0


class Spent(NamedTuple):
    """One window of one promise."""

    n: int
    """Admitted requests that ended in it."""
    late: int
    """How many of them missed a target."""
    burn_rate: float | None
    """The late share over the allowed share; None while nothing ended."""


class ErrorBudget:
    """Counts one class's requests by minute, for a day: at most 1,440 pairs of numbers."""

    __slots__ = ("_newest", "_slices", "_turns_at", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        """When counting began."""
        self._slices: deque[list[int]] = deque()
        """[minute, n, late], oldest first."""
        self._newest = [0, 0, 0]
        self._turns_at = -inf
        """When the newest minute is over."""

    def add(self, now: float, late: bool) -> None:
        """Count one admitted request that ended at `now`."""
        # What is reported a little late belongs to the newest minute rather than to none.
        newest = self._newest
        if now >= self._turns_at:
            minute = int(now // _SLICE_S)
            newest = self._newest = [minute, 0, 0]
            self._turns_at = (minute + 1) * _SLICE_S
            self._slices.append(newest)
            self._expire(minute)
        newest[1] += 1
        newest[2] += late

    @classmethod
    def total(cls, parts: Iterable[ErrorBudget], since: float) -> ErrorBudget:
        """Return one budget of everything that `parts` counted; `since` is when counting began."""
        minutes: dict[int, list[int]] = {}
        for part in parts:
            for minute, n, late in part._slices:
                counts = minutes.setdefault(minute, [minute, 0, 0])
                counts[1] += n
                counts[2] += late
        whole = cls(since)
        whole._slices.extend(minutes[minute] for minute in sorted(minutes))
        if minutes:
            whole._newest = whole._slices[-1]
            whole._turns_at = (whole._newest[0] + 1) * _SLICE_S
            whole._expire(whole._newest[0])
        return whole

    def spent(self, now: float, window_s: float, allowed: float) -> Spent:
        """Return what happened in the last `window_s`, to the minute; `allowed` is the share that may be late."""
        oldest = int((now - window_s) // _SLICE_S)
        n = late = 0
        for minute, count, missed in reversed(self._slices):
            if minute <= oldest:
                break
            n += count
            late += missed
        return Spent(n, late, late / n / allowed if n else None)

    def as_dict(self, now: float, quantile: float) -> dict[str, Any]:
        """Return all windows and what is left of the last one's budget, JSON-ready.

        `remaining` is 1 when nothing was late, 0 when all that may be late was, negative beyond; None while nothing
        ended. `covered_s` says for how much of the longest window there has been anything to count.
        """
        allowed = 1.0 - quantile
        windows: dict[str, Any] = {}
        remaining: float | None = None
        for name, span in WINDOWS:
            spent = self.spent(now, span, allowed)
            windows[name] = {
                "n": spent.n,
                "late": spent.late,
                "late_share": spent.late / spent.n if spent.n else None,
                "burn_rate": spent.burn_rate,
            }
            remaining = None if spent.burn_rate is None else 1.0 - spent.burn_rate
        covered = min(WINDOWS[-1][1], max(0.0, now - self.since))
        return {"quantile": quantile, "covered_s": covered, "remaining": remaining, "windows": windows}

    def _expire(self, minute: int) -> None:
        oldest = minute - int(WINDOWS[-1][1] // _SLICE_S)
        while self._slices and self._slices[0][0] <= oldest:
            self._slices.popleft()
