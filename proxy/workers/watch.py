"""Which workers do not come back: those that say nothing, though they could."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from proxy.process.watchdog import STUCK_S, cpu_of

__all__ = ["CHECK_S", "Watch"]

CHECK_S: Final = 1.0
"""How often to look."""
_BUSY_S: Final = STUCK_S / 2.0
"""So much processor time a worker has used while it said nothing, if it is at work on something endless."""
_WEDGED_S: Final = 3.0 * STUCK_S
"""After so long one that uses none is taken for lost too."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Speaker(Protocol):
    """A worker, as far as it is heard."""

    number: int
    pid: int
    heard: int
    """Counts what was heard of it."""


class Watch:
    """Remembers when each worker was last heard. `cpu` looks at a process; time comes in as arguments.

    A worker that was stopped, or that shared a sleep or a shortage with us, is not lost: time counts only while we
    look in time ourselves, and silence only with work behind it, or three times as long.
    """

    def __init__(self, cpu: Callable[[int], tuple[bool, float] | None] = cpu_of) -> None:
        self._cpu = cpu
        self._known: dict[int, tuple[int, float, float]] = {}
        """By process: how much had been heard, the silence since then, and the ticks it had used."""
        self._looked: float | None = None

    def lost(self, speakers: Iterable[Speaker], now: float) -> list[Speaker]:
        """Return who is to be replaced. Call it every `CHECK_S` seconds, with the monotonic time."""
        since = CHECK_S if self._looked is None else now - self._looked
        self._looked = now
        passed = since if since < 3.0 * CHECK_S else 0.0
        found, known = [], {}
        for speaker in speakers:
            looked = self._cpu(speaker.pid)
            stopped, ticks = (False, 0.0) if looked is None else looked
            heard, silent, before = self._known.get(speaker.pid, (-1, 0.0, ticks))
            if heard != speaker.heard or stopped:
                silent, before = 0.0, ticks
            else:
                silent += passed
            known[speaker.pid] = (speaker.heard, silent, before)
            busy = looked is None or (ticks - before) / _TICKS >= _BUSY_S
            if silent >= (STUCK_S if busy else _WEDGED_S):
                found.append(speaker)
        self._known = known
        return found
