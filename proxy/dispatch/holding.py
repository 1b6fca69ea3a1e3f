"""What becomes of a pool's requests while none of its upstreams is there: they wait for the first that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from proxy.clock import Clock
from proxy.dispatch.gate import GateBatcher
from proxy.dispatch.lobby import Lobby
from proxy.dispatch.queue import Drop, WaitQueue
from proxy.outcome import NoUpstream, QueueFull, Refused
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.presence import UNBOUNDED, Presence
from proxy.upstream.slots import MergeSlots

__all__ = ["Holding"]


class Holding:
    """Holds the queue while nobody is there, and lets it go step by step once somebody is.

    Who waits keeps what the queue gives: bounds, order, deadlines, leaving at any time. Nobody is shed for having
    waited, since that was not for lack of speed; everybody is refused after `patience_s()` seconds, or as soon as
    `elsewhere` says that another pool would take it. What takes no place in the queue waits in a lobby, where as many
    may be as may queue.
    """

    __slots__ = (
        "_clock",
        "_for_one",
        "_gate",
        "_lobby",
        "_patience_s",
        "_poke",
        "_queue",
        "_slots",
        "elsewhere",
        "presence",
    )

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        *,
        queue: WaitQueue,
        gate: GateBatcher,
        slots: MergeSlots,
        limit: int,
        patience_s: Callable[[], float],
        poke: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._queue = queue
        self._gate = gate
        self._slots = slots
        self._poke = poke
        self._lobby = Lobby(asyncio.get_running_loop(), limit)
        self._for_one = Lobby(asyncio.get_running_loop(), limit)
        """Where those wait that only one of them can serve."""
        self.presence = Presence(endpoints, clock, on_step=self._step, on_wait=self._wait)
        self._patience_s = patience_s
        self.elsewhere: Callable[[], bool] = lambda: False
        """Whether another pool takes what finds nobody here."""

    @property
    def on(self) -> bool:
        """Whether nobody is there, so that whoever comes waits."""
        return self.presence.absent

    def patient(self, arrival: float, give_up: float) -> bool:
        """Whether a request that came at `arrival` and waits until `give_up` may wait for somebody to come back."""
        return self._clock.now() < min(give_up, self._until(arrival)) and not self.elsewhere()

    def look(self) -> None:
        """Something changed about an endpoint."""
        self.presence.look()
        self._for_one.let_go(len(self._for_one))

    def in_time(self, arrival: float, give_up: float) -> bool:
        """Whether a request that came at `arrival` may still wait for the one upstream that can serve it."""
        return self._clock.now() < min(give_up, arrival + self._patience_s())

    async def for_one(self, endpoint: Endpoint, arrival: float, give_up: float) -> bool:
        """Wait until `endpoint` may be asked. Returns whether it may; not, when it does not come back in time.

        Raises Refused when too many wait. Whom an operator takes out is not waited for.
        """
        until = min(give_up, arrival + self._patience_s())
        while not endpoint.reachable:
            left = until - self._clock.now()
            if endpoint.draining or left <= 0.0:
                return False
            if self._for_one.full:
                raise Refused(QueueFull())
            if not await self._for_one.wait(left):
                return endpoint.reachable
        return True

    async def outside(self, arrival: float, give_up: float) -> None:
        """Wait without a place in the queue. Raises Refused when nobody comes in time, or too many wait."""
        while self.on:
            if not self.patient(arrival, give_up):
                raise Refused(NoUpstream())
            if self._lobby.full:
                raise Refused(QueueFull())
            if not await self._lobby.wait(min(give_up, self._until(arrival)) - self._clock.now()):
                raise Refused(NoUpstream())

    def stop(self) -> None:
        """Wait for nobody any more."""
        self.presence.stop()
        self._lobby.send_away()
        self._for_one.send_away()

    def _until(self, arrival: float) -> float:
        presence = self.presence
        return (max(arrival, presence.since) if presence.absent else arrival) + self._patience_s()

    def _step(self, allowance: int) -> None:
        """Let `allowance` more go."""
        self._queue.spare(allowance == 0)
        if allowance == 0:
            self._gate.ceiling = self._slots.ceiling = 0
            return
        bounded = allowance < UNBOUNDED
        self._gate.ceiling = self._gate.inflight + allowance if bounded else UNBOUNDED
        self._slots.ceiling = self._slots.calls + allowance if bounded else UNBOUNDED
        self._poke()
        self._lobby.let_go(allowance)

    def _wait(self) -> None:
        """Send those away who have waited for long enough."""
        if self.elsewhere():
            self._queue.drop_all(Drop.NO_UPSTREAM)
            self._lobby.send_away()
            return
        oldest, now = self._queue.oldest, self._clock.now()
        while oldest is not None and self._until(oldest) <= now:
            self._queue.drop_oldest(Drop.NO_UPSTREAM)
            oldest = self._queue.oldest
