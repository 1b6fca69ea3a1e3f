"""When the waiting go, and together with whom. Events in, commands out; time is the clock that was handed in.

Two ways to dispatch share the queue, the setpoints and the controller's judgement:

- `GateBatcher`: the upstream batches by itself. `max_batch_size` bounds the sequences in flight over the pool,
  `window_ms` holds the first of a group back so that the policy can reorder it and prefills start together.
- `MergeBatcher` (`proxy.dispatch.merge`): up to `max_batch_size` items with one compatibility key become one
  upstream call.

The window is a minimum wait before an upstream that has nothing to do. Towards a busy one it never triggers:
there, only a full batch goes early, and what waits goes as soon as an upstream has nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf
from typing import Final, Protocol

from controller.load import Load
from controller.setpoints import Setpoints
from controller.verdict import Choice
from policies.base import Job
from proxy.clock import Clock, Timer
from proxy.dispatch.queue import Drop, Lane, Waiting, WaitQueue
from proxy.observe.hooks import ClosedBy
from proxy.upstream.lease import Book

__all__ = ["EPSILON_S", "GATE", "Former", "GateBatcher", "Plain", "Window", "when_due"]

GATE: Final[Hashable] = ("gate",)
"""The lane of everybody who is not merged."""
_WINDOW_SHARE: Final = 0.5
"""The window may use up at most this share of a request's time to its deadline."""
EPSILON_S: Final = 1e-6
_MORE: Final = 4
"""So many more than there are free places are shown to the controller: some may be hopeless."""
_FURTHER: Final = 64
"""And so many where express requests stand among others, lest a row of them hide who is next of the others."""


class Former(Protocol):
    """The controller, as far as forming batches goes."""

    @property
    def setpoints(self) -> Setpoints:
        """The knobs in force."""
        ...

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered candidates to send now, and which to shed."""
        ...

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long the first waiting item may be held."""
        ...


class Plain:
    """A former for work that the controller's model is not about: everything that fits goes, nothing is shed.

    A pool that gates chats may merge embeddings beside them; knobs and window are shared, the judgement is not.
    """

    __slots__ = ("_controller",)

    def __init__(self, controller: Former) -> None:
        self._controller = controller

    @property
    def setpoints(self) -> Setpoints:
        """The controller's own."""
        return self._controller.setpoints

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Take all."""
        return Choice(len(candidates), ())

    def window_s(self, now: float, load: Load) -> float:
        """Return the controller's own."""
        return self._controller.window_s(now, load)


class Window:
    """One timer, moved only when it would ring too late."""

    __slots__ = ("_callback", "_clock", "_timer", "_when", "since")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None
        self._when = inf
        self.since: float | None = None
        """Since when only this window has kept anybody waiting (monotonic seconds); None while it keeps nobody."""

    def arm(self, when: float) -> None:
        """Ring at `when` at the latest."""
        if self.since is None:
            self.since = self._clock.now()
        if when < self._when:
            if self._timer is not None:
                self._timer.cancel()
            self._when = when
            self._timer = self._clock.call_at(when, self._ring)

    def stop(self) -> None:
        """Do not ring: nobody waits."""
        self.since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._when = inf

    def _ring(self) -> None:
        self._timer = None
        self._when = inf
        self._callback()


class GateBatcher:
    """Lets sequences through while fewer than `max_batch_size` are in flight."""

    __slots__ = (
        "_book",
        "_clock",
        "_controller",
        "_grant",
        "_load",
        "_queue",
        "_window",
        "ceiling",
        "draining",
        "held_back",
    )

    def __init__(
        self,
        queue: WaitQueue,
        controller: Former,
        clock: Clock,
        *,
        book: Book,
        load: Callable[[float], Load],
        grant: Callable[[Waiting, ClosedBy], None],
    ) -> None:
        self._book = book
        self._queue = queue
        self._controller = controller
        self._clock = clock
        self._load = load
        self._grant = grant
        self._window = Window(clock, self.poke)
        self.ceiling = 1 << 30
        """No more than these may be in flight, whatever the cap: upstreams are away, or only just back."""
        self.held_back = False
        """Whether the cap kept somebody waiting since this was last cleared."""
        self.draining = False

    @property
    def inflight(self) -> int:
        """Sequences let through and not yet over."""
        return len(self._book)

    @property
    def held_since(self) -> float | None:
        """Since when only the window has kept those waiting who are let through now; None when something else did."""
        return self._window.since

    def try_enter(self, job: Job, express: bool, now: float, load: Load) -> bool:
        """Tell whether a newcomer may go at once: nobody waits, a place is free, and there is nothing to wait for.

        Whoever asks takes the place then, before anybody else asks.
        """
        controller = self._controller
        setpoints = controller.setpoints
        inflight = len(self._book)
        if inflight >= setpoints.max_batch_size or inflight >= self.ceiling:
            return False
        if self._queue.items and self._queue.lane(GATE) is not None:
            return False
        held = setpoints.window_ms > 0.0 and not express and not self.draining
        if held and controller.window_s(now, load) > 0.0:
            return False
        return controller.choose((job,), now, load).take == 1

    def offer(self, waiting: Waiting) -> None:
        """Queue a newcomer and see who can go."""
        self._queue.push(waiting, GATE)
        self.poke()

    def poke(self) -> None:
        """Something changed: let through whoever can go now."""
        while (lane := self._queue.lane(GATE)) is not None:
            cap = self._controller.setpoints.max_batch_size
            inflight = len(self._book)
            free = min(cap, self.ceiling) - inflight
            if free <= 0:
                self.held_back = self.held_back or inflight >= cap
                self._window.since = None
                return
            now = self._clock.now()
            load = self._load(now)
            closed_by, due = self._due(lane, free, now, load)
            if closed_by is None:
                self._window.arm(due)
                return
            if not self._send(lane, free, closed_by, now, load):
                self._window.since = None
                return
        self._window.stop()

    def _due(self, lane: Lane, free: int, now: float, load: Load) -> tuple[ClosedBy | None, float]:
        if self.draining:
            return ClosedBy.DRAIN, now
        if lane.express:
            return ClosedBy.EXPRESS, now
        if len(lane) >= free:
            return ClosedBy.FULL, now
        due, closed_by = when_due(lane, self._controller.window_s(now, load))
        return (closed_by, now) if now >= due - EPSILON_S else (None, due)

    def _send(self, lane: Lane, free: int, closed_by: ClosedBy, now: float, load: Load) -> bool:
        """Let the head of the lane through. Returns whether to look again."""
        mixed = 0 < lane.express < len(lane)
        candidates = lane.first(free + (_FURTHER if mixed else _MORE))
        if self._queue.spared:
            spared = [waiting for waiting in candidates if waiting.spared][:free]
            for waiting in spared:
                self._let(waiting, closed_by)
            if spared:
                return True
        choice = self._controller.choose([waiting.job for waiting in candidates], now, load)
        going = [candidates[index] for index in choice.sent(len(candidates))[:free]]
        for index in choice.shed:
            self._queue.drop(candidates[index], Drop.SHED)
        if not going and not len(self._book) and not choice.shed:
            # With nothing in flight no event would ever come back to those who wait.
            going = candidates[:1]
        for waiting in going:
            self._let(waiting, closed_by)
        if len(going) + len(choice.shed) < len(candidates):
            self.held_back = True
        return bool(going or choice.shed)

    def _let(self, waiting: Waiting, closed_by: ClosedBy) -> None:
        if waiting.lane is not None:
            self._queue.serve(waiting)
            self._grant(waiting, closed_by)


def when_due(lane: Lane, window: float) -> tuple[float, ClosedBy]:
    """Return when the first of `lane` has waited enough, and what that is called."""
    oldest = lane.oldest
    if window <= 0.0:
        return oldest, ClosedBy.IDLE
    deadline = lane.oldest_deadline
    if deadline is not None and _WINDOW_SHARE * (deadline - oldest) < window:
        return oldest + _WINDOW_SHARE * (deadline - oldest), ClosedBy.DEADLINE
    return oldest + window, ClosedBy.WINDOW
