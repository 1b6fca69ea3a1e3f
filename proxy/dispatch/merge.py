"""Filling upstream calls with what may share one, and when they go."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Protocol

from controller.load import Load
from controller.verdict import Choice
from policies.heap import Handle, JobHeap
from policies.packing import pack
from proxy.clock import Clock
from proxy.dispatch.gate import EPSILON_S, Former, Window, when_due
from proxy.dispatch.queue import Drop, Lane, Waiting, WaitQueue
from proxy.observe.hooks import ClosedBy

__all__ = ["Batch", "MergeBatcher", "Slots", "by_length"]

_MORE: Final = 64
_MAX_SKIP: Final = 8
"""How many that do not fit a batch are passed over for smaller ones."""


class Slots(Protocol):
    """Where merged calls can go."""

    def free(self) -> int:
        """Return how many more calls may be in flight."""
        ...

    def idle(self) -> bool:
        """Return whether some upstream has nothing to do."""
        ...


@dataclass(slots=True)
class Batch:
    """What goes together."""

    members: list[Waiting]
    items: int
    tokens: float
    closed_by: ClosedBy
    generation: int
    """Of the setpoints it was formed under."""
    held_since: float | None = None
    """Since when only the window has kept it (monotonic seconds); None where something else did, or nothing."""


class MergeBatcher:
    """Fills batches of equal compatibility keys and sends them when they are full or an upstream is idle."""

    __slots__ = (
        "_clock",
        "_controller",
        "_dispatch",
        "_due",
        "_load",
        "_max_tokens",
        "_queue",
        "_ripe",
        "_slots",
        "_window",
        "draining",
        "held_back",
        "hold",
    )

    def __init__(
        self,
        queue: WaitQueue,
        controller: Former,
        clock: Clock,
        *,
        slots: Slots,
        load: Callable[[float], Load],
        dispatch: Callable[[Batch], None],
        max_tokens: float | None = None,
    ) -> None:
        self._queue = queue
        self._controller = controller
        self._clock = clock
        self._slots = slots
        self._load = load
        self._dispatch = dispatch
        self._max_tokens = max_tokens
        self._window = Window(clock, self.poke)
        self._due: JobHeap[Lane] = JobHeap()
        self._ripe: dict[Lane, None] = {}
        self.held_back = False
        """Whether a full batch had to wait since this was last cleared."""
        self.draining = False
        self.hold = 0
        """Send nothing until so many items wait; for tests, so that none has to race."""

    def offer(self, waiting: Waiting, key: Hashable) -> None:
        """Queue a newcomer and see what can go."""
        lane = self._queue.push(waiting, key)
        if lane.place is None:
            lane.place = self._due.push(lane.oldest, lane)
        if self._is_ripe(lane):
            self._ripe[lane] = None
        self.poke()

    def left(self, lane: Lane) -> None:
        """Somebody left `lane` without being served."""
        self._replace(lane)

    def poke(self) -> None:
        """Something changed: send what can go now."""
        if self._queue.items < self.hold:
            return
        while self._due:
            if self._slots.free() <= 0:
                self.held_back = self.held_back or bool(self._ripe)
                self._window.since = None
                return
            now = self._clock.now()
            load = self._load(now)
            lane, closed_by = self._next(now, load)
            if lane is None:
                return
            if not self._send(lane, closed_by, now, load):
                self._window.since = None
                return
        self._window.stop()

    def refresh(self) -> None:
        """The setpoints changed: what counts as full may be something else now."""
        self._ripe = {lane: None for lane in self._due if self._is_ripe(lane)}
        self.poke()

    def _next(self, now: float, load: Load) -> tuple[Lane | None, ClosedBy]:
        """Return the lane that goes now and why; arms the window when none does but one will."""
        best: Lane | None = None
        why = ClosedBy.FULL
        if self._ripe:
            best = min(self._ripe, key=lambda lane: lane.head_key)
            why = self._fullness(best) or ClosedBy.EXPRESS
        if self.draining:
            return (best, why) if best is not None else (self._due.peek(), ClosedBy.DRAIN)
        if not self._slots.idle():
            self._window.since = None
            return best, why
        lane = self._due.peek()
        due, closed_by = when_due(lane, self._controller.window_s(now, load))
        if now < due - EPSILON_S:
            if best is None:
                self._window.arm(due)
            return best, why
        if best is None or lane.head_key < best.head_key:
            return lane, closed_by
        return best, why

    def _send(self, lane: Lane, closed_by: ClosedBy, now: float, load: Load) -> bool:
        """Send a batch from the head of `lane`. Returns whether to look again."""
        setpoints = self._controller.setpoints
        cap = setpoints.max_batch_size
        # More than fit are shown, so that those who can no longer make it do not leave a hole.
        shown = lane.first(2 * cap + _MORE)
        spared = [waiting for waiting in shown if waiting.spared] if self._queue.spared else ()
        if spared:
            shown = spared
            choice = Choice(len(shown), ())
        else:
            choice = self._controller.choose([waiting.job for waiting in shown], now, load)
        going = [shown[index] for index in choice.sent(len(shown))]
        for index in choice.shed:
            self._queue.drop(shown[index], Drop.SHED)
        if not going and not choice.shed and self._slots.idle():
            # With an idle upstream no event would ever come back to those who wait.
            going = shown[:1]
        if sum([waiting.items for waiting in going]) > cap or self._max_tokens is not None:
            going = pack(
                going, max_items=cap, max_tokens=self._max_tokens, items=_items, tokens=_tokens, max_skip=_MAX_SKIP
            ).taken
        members = [waiting for waiting in going if waiting.lane is not None]
        self._queue.serve_all(lane, members)
        self._replace(lane)
        if not members:
            return bool(choice.shed)
        self._dispatch(
            Batch(
                members,
                sum([waiting.items for waiting in members]),
                sum([waiting.tokens for waiting in members]),
                closed_by,
                setpoints.generation,
                self._window.since,
            )
        )
        return True

    def _replace(self, lane: Lane) -> None:
        """Bring a lane that shrank to where it belongs now."""
        place: Handle[Lane] | None = lane.place
        if place is not None:
            self._due.remove(place)
            lane.place = None
        if lane.members:
            lane.place = self._due.push(lane.oldest, lane)
            if self._is_ripe(lane):
                self._ripe[lane] = None
                return
        self._ripe.pop(lane, None)

    def _fullness(self, lane: Lane) -> ClosedBy | None:
        """Return which limit `lane` has reached, None when more may join."""
        if lane.items >= self._controller.setpoints.max_batch_size:
            return ClosedBy.FULL
        return ClosedBy.TOKENS if self._max_tokens is not None and lane.tokens >= self._max_tokens else None

    def _is_ripe(self, lane: Lane) -> bool:
        return lane.express > 0 or self._fullness(lane) is not None


def by_length(waiting: Waiting) -> float:
    """Return what sorts a batch's members longest item first, given their tokens an item.

    An upstream that pads computes every item of a part of the batch as long as that part's longest, and how large
    its memory must be shows with the first part.
    """
    return -waiting.tokens / max(1, waiting.items)


def _items(waiting: Waiting) -> int:
    return waiting.items


def _tokens(waiting: Waiting) -> float:
    return waiting.tokens
