"""What happens when an event loop stands still: it is reported with its stacks, and its process ends."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
from pathlib import Path
from typing import Final

from proxy.process.notify import Notifier

__all__ = ["STUCK_S", "Watchdog", "cpu_of"]

STUCK_S: Final = 10.0
"""A loop that has used so much processor time without turning does not come back."""
_TURN_S: Final = 1.0


class Watchdog:
    """Lets the kernel end this process when its loop is at work for `STUCK_S` without a turn.

    The timer counts the processor time that we use. A process that was stopped, a machine that slept, and one that
    is short of processors use none, so nobody is ended for those. And the kernel needs neither the interpreter's lock
    nor a bytecode that ends: compiled code and libraries in an endless loop are ended too, when no handler written
    in Python would ever run and SIGTERM meant nothing. The stacks of all threads are written to stderr first.
    """

    def __init__(self, notifier: Notifier | None = None) -> None:
        self._notifier = notifier or Notifier()
        within = self._notifier.watchdog_s
        self._every_s = _TURN_S if within is None else min(_TURN_S, within / 2.0)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch from now on."""
        if sys.stderr is not None:
            faulthandler.enable()
            # Written by a handler in C, which then hands on to the usual one: that ends the process.
            faulthandler.register(signal.SIGPROF, all_threads=True, chain=True)
        self._turn()

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _turn(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, STUCK_S)
        if self._notifier.watchdog_s is not None:
            self._notifier.say("WATCHDOG=1")
        self._timer = self._loop.call_later(self._every_s, self._turn)


def cpu_of(pid: int) -> tuple[bool, float] | None:
    """Return whether a process is stopped, and the clock ticks it has used; None where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0] in ("T", "t"), float(int(fields[11]) + int(fields[12]))
