"""What an upstream says about its own load."""

from __future__ import annotations

from typing import Any

from proxy.config.profile import Signals

__all__ = ["Reported"]

_STALE_AFTER = 3.0
"""Readings missed before the last one counts as stale."""


class Reported:
    """The latest reading of an upstream's metrics, and how old it is. For people: control never looks at it."""

    __slots__ = ("_interval_s", "at", "error", "signals")

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self.signals = Signals()
        self.at: float | None = None
        """When it was read (monotonic seconds); None before the first."""
        self.error = ""
        """Why the last attempt gave nothing; empty when it did."""

    def read(self, signals: Signals, now: float) -> None:
        """Take a reading."""
        self.signals, self.at, self.error = signals, now, ""

    def failed(self, error: str) -> None:
        """Keep the last reading, which ages from now on."""
        self.error = error

    def age_s(self, now: float) -> float | None:
        """Return how old the reading is; None when there is none."""
        return None if self.at is None else max(0.0, now - self.at)

    def stale(self, now: float) -> bool:
        """Whether it is too old to be taken for the present."""
        age = self.age_s(now)
        return age is None or age > _STALE_AFTER * self._interval_s

    def stats(self, now: float) -> dict[str, Any]:
        """Return it JSON-ready."""
        age = self.age_s(now)
        return {
            **self.signals._asdict(),
            "age_s": None if age is None else round(age, 3),
            "stale": self.stale(now),
            "error": self.error,
        }
