"""Whether anybody of a pool is there to be asked, and how many may go once somebody is back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from proxy.clock import Clock, Timer
from proxy.upstream.endpoint import Endpoint

__all__ = ["STEP_S", "UNBOUNDED", "WAIT_S", "Presence"]

UNBOUNDED: Final = 1 << 30
WAIT_S: Final = 0.25
"""Between two looks at who waits while nobody is there."""
STEP_S: Final = 0.1
"""Between two steps of the way back."""
_LAST_STEP: Final = 64
"""After so many at once nobody is counted any more."""


class Presence:
    """Watches over the moment when the last upstream goes, and over the one when the first comes back.

    While nobody is there nobody is let go. Whoever comes back is asked by one request at first and by twice as many
    every STEP_S, so that those who waited are a trial before they are a herd. `on_step` is called at each step, with
    how many may go (0 while nobody may), and `on_wait` every WAIT_S while nobody is there.

    Upstreams that an operator takes out are not waited for: without any other, nobody is expected.
    """

    __slots__ = ("_clock", "_endpoints", "_on_step", "_on_wait", "_timer", "absent", "allowance", "since")

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        *,
        on_step: Callable[[int], None],
        on_wait: Callable[[], None],
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._clock = clock
        self._on_step = on_step
        self._on_wait = on_wait
        self._timer: Timer | None = None
        self.absent = False
        """Whether there are upstreams, and none of them can be asked now."""
        self.since = 0.0
        """Since when (monotonic seconds)."""
        self.allowance = UNBOUNDED
        """How many more may go at this step."""

    def look(self) -> None:
        """Something changed about an endpoint."""
        expected = [endpoint for endpoint in self._endpoints if not endpoint.draining]
        absent = bool(expected) and not any(endpoint.reachable for endpoint in expected)
        if absent == self.absent:
            return
        self.absent = absent
        if absent:
            self.since = self._clock.now()
            self.allowance = 0
        else:
            self.allowance = 1 if expected else UNBOUNDED
        self._on_step(self.allowance)
        self._arm()

    def stop(self) -> None:
        """Do nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.stop()
        if self.absent or self.allowance < UNBOUNDED:
            delay = WAIT_S if self.absent else STEP_S
            self._timer = self._clock.call_at(self._clock.now() + delay, self._step)

    def _step(self) -> None:
        self._timer = None
        if self.absent:
            self._on_wait()
        else:
            self.allowance = 2 * self.allowance if self.allowance < _LAST_STEP else UNBOUNDED
            self._on_step(self.allowance)
        if self._timer is None:
            self._arm()
