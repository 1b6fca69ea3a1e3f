"""Time as an argument: the live loop's clock, and the shape that a test's clock must have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Protocol

__all__ = ["Clock", "LoopClock", "Timer"]

_TICK_S = 0.0005
"""uvloop rounds a delay to whole milliseconds; half of one more keeps a timer from firing early."""


class Timer(Protocol):
    """A callback that has been scheduled."""

    def cancel(self) -> object:
        """Take it back; harmless when it has run or was cancelled before."""
        ...


class Clock(Protocol):
    """Monotonic seconds, and callbacks at points on the same scale."""

    def now(self) -> float:
        """Return the present, in seconds."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once the clock has reached `when`."""
        ...


class LoopClock:
    """The clock of a running event loop, with the resolution of `time.monotonic`."""

    __slots__ = ("_loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now: Callable[[], float] = monotonic

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` once the clock has reached `when`; at the next turn of the loop if it has already."""
        return self._loop.call_later(max(0.0, when - monotonic()) + _TICK_S, callback)
