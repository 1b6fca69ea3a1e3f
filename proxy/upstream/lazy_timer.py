"""A deadline that is moved far more often than it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from proxy.now import monotonic

__all__ = ["LazyTimer"]

_TICK_S: Final = 0.0005


class LazyTimer:
    """Calls `on_due` some time at or after `due`; whoever is called looks whether it has moved meanwhile.

    A timer of the loop is set when there is none or the one that runs is too late, so moving the deadline on, which
    every request does, hardly ever costs one.
    """

    __slots__ = ("_at", "_handle", "_loop", "_on_due", "due")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], None]) -> None:
        self._loop = loop
        self._on_due = on_due
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0
        self.due = 0.0
        """The deadline (monotonic seconds)."""

    def set(self, when: float) -> None:
        """Move the deadline to `when` (monotonic seconds)."""
        self.due = when
        if self._handle is None or when < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = when
            self._handle = self._loop.call_later(max(0.0, when - monotonic()) + _TICK_S, self._fired)

    def cancel(self) -> None:
        """Call nobody any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fired(self) -> None:
        self._handle = None
        self._on_due()
