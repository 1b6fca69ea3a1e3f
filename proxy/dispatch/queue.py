"""The waiting room: bounded, ordered by a policy, left in O(log n) from anywhere, emptied of the late by a timer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from policies.base import Job, Policy
from policies.heap import Handle, JobHeap
from policies.ordering import Ordering
from proxy.clock import Clock, Timer

__all__ = ["Drop", "Lane", "WaitQueue", "Waiting"]


_KEPT_LATENESS: Final = 64
"""So many deadlines may be kept of those who left."""

_NEVER: Final = float("inf")


class Drop(StrEnum):
    """Why someone left the queue without being served."""

    EXPIRED = "expired"
    """The deadline passed."""
    SHED = "shed"
    """It can no longer make its deadline."""
    NO_UPSTREAM = "no_upstream"
    """Nobody to send it to."""
    CLOSED = "closed"
    """The pool is going away."""


class Waiting:
    """One request's place in the queue. Subclasses say what happens when it is dropped."""

    __slots__ = ("deadline", "express", "handle", "items", "job", "klass", "lane", "spared", "tokens")

    def __init__(
        self,
        job: Job,
        *,
        items: int = 1,
        tokens: float = 0.0,
        klass: str = "default",
        express: bool = False,
        deadline: float = inf,
    ) -> None:
        self.job = job
        self.items = items
        """What it counts against max_batch_size."""
        self.tokens = tokens
        """Predicted work in tokens."""
        self.klass = klass
        self.express = express
        """Whether it skips the window."""
        self.deadline = deadline
        """When it gives up waiting (monotonic seconds); inf for never."""
        self.spared = False
        """Whether having waited is not to be held against it."""
        self.lane: Lane | None = None
        self.handle: Handle[Waiting] | None = None

    def dropped(self, why: Drop) -> None:
        """It left the queue without being served."""
        raise NotImplementedError


class Lane:
    """Those who may share a batch, in the policy's order, and since when the first of them waits."""

    __slots__ = ("express", "heap", "items", "key", "members", "place", "tokens")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.heap: JobHeap[Waiting] = JobHeap()
        self.members: dict[Waiting, None] = {}
        """In order of arrival."""
        self.items = 0
        self.tokens = 0.0
        self.express = 0
        """How many of them skip the window."""
        self.place: Handle[Lane] | None = None

    def __len__(self) -> int:
        return len(self.members)

    @property
    def oldest(self) -> float:
        """When the one who came first came. Only while somebody waits."""
        return next(iter(self.members)).job.arrival

    @property
    def oldest_deadline(self) -> float | None:
        """By when that one must be answered; None when nobody said."""
        return next(iter(self.members)).job.deadline

    @property
    def head_key(self) -> float:
        """The virtual deadline of the one who goes next. Only while somebody waits."""
        handle = self.heap.peek().handle
        assert handle is not None
        return handle.key

    def first(self, limit: int | None = None) -> list[Waiting]:
        """Return the next ones in order, at most `limit` of them."""
        return [handle.item for handle in self.heap.first(limit)]


class WaitQueue:
    """Everybody who waits at one pool, in lanes.

    Joining, leaving and being served are O(log n). Lateness costs one timer, for the earliest deadline; who left
    before it is only forgotten when it comes, or when they are many.
    """

    __slots__ = (
        "_accounts",
        "_arrivals",
        "_by_class",
        "_class_limits",
        "_clock",
        "_lanes",
        "_lateness",
        "_max_requests",
        "_on_left",
        "_policy",
        "_serial",
        "_sparing",
        "_timer",
        "_timer_at",
        "items",
        "spared",
        "tokens",
    )

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        *,
        max_requests: int,
        class_limits: Mapping[str, int] | None = None,
        on_left: Callable[[Lane], None] | None = None,
    ) -> None:
        self._policy = policy
        self._accounts = getattr(type(policy), "completed", None) is not Ordering.completed
        """Whether the policy wants to know what a request cost: most do not, and asking them costs every request."""
        self._clock = clock
        self._max_requests = max_requests
        self._class_limits = dict(class_limits or {})
        self._on_left = on_left
        self._lanes: dict[Hashable, Lane] = {}
        self._arrivals: dict[Waiting, None] = {}
        self._by_class: dict[str, int] = {}
        self._lateness: list[tuple[float, int, Waiting]] = []
        self._serial = 0
        self._timer: Timer | None = None
        self._timer_at = inf
        self.items = 0
        """Items waiting."""
        self.tokens = 0.0
        """Predicted tokens waiting."""
        self.spared = 0
        """How many of them have waited for something else than their turn."""
        self._sparing = False

    def __len__(self) -> int:
        return len(self._arrivals)

    def completed(self, job: Job, output_tokens: int) -> None:
        """Tell the policy what a dispatched `job` really cost; 0 tokens when it was aborted."""
        if self._accounts:
            self._policy.completed(job, output_tokens)

    @property
    def by_class(self) -> Mapping[str, int]:
        """Requests waiting, by class."""
        return self._by_class

    @property
    def oldest(self) -> float | None:
        """When the one who waits longest came; None when nobody waits."""
        return next(iter(self._arrivals)).job.arrival if self._arrivals else None

    def lane(self, key: Hashable) -> Lane | None:
        """Return the lane of `key` if anybody waits in it."""
        return self._lanes.get(key)

    def jobs(self, *, besides: Hashable) -> list[Job]:
        """Return those who wait in any lane but `besides`, as they came."""
        left_out = self._lanes.get(besides)
        return [waiting.job for waiting in self._arrivals if waiting.lane is not left_out]

    def full_for(self, klass: str) -> str | None:
        """Return whose bound keeps one more of `klass` out: "" the queue's, the class's name, or None."""
        if len(self._arrivals) >= self._max_requests:
            return ""
        limit = self._class_limits.get(klass)
        return klass if limit is not None and self._by_class.get(klass, 0) >= limit else None

    def push(self, waiting: Waiting, key: Hashable) -> Lane:
        """Let `waiting` queue in the lane of `key`. The caller has asked `full_for`."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(key)
        waiting.lane = lane
        waiting.handle = lane.heap.push(self._policy.key(waiting.job), waiting)
        lane.members[waiting] = None
        lane.items += waiting.items
        lane.tokens += waiting.tokens
        lane.express += waiting.express
        if self._sparing:
            waiting.spared = True
            self.spared += 1
        self._arrivals[waiting] = None
        self.items += waiting.items
        self.tokens += waiting.tokens
        self._by_class[waiting.klass] = self._by_class.get(waiting.klass, 0) + 1
        if waiting.deadline < _NEVER:
            self._serial += 1
            heappush(self._lateness, (waiting.deadline, self._serial, waiting))
            if waiting.deadline < self._timer_at:
                self._arm(waiting.deadline)
        return lane

    def serve(self, waiting: Waiting) -> None:
        """Take `waiting` out to be served."""
        self._leave(waiting)
        self._policy.dispatched(waiting.job)

    def serve_all(self, lane: Lane, members: Sequence[Waiting]) -> None:
        """Take `members` of `lane` out to be served together."""
        lane.heap.remove_all([waiting.handle for waiting in members if waiting.handle is not None])
        for waiting in members:
            self._leave(waiting)
            self._policy.dispatched(waiting.job)

    def cancel(self, waiting: Waiting) -> bool:
        """Take `waiting` out because it went away. Returns False when it had left before."""
        if waiting.lane is None:
            return False
        lane = waiting.lane
        self._leave(waiting)
        self._policy.removed(waiting.job)
        if self._on_left is not None:
            self._on_left(lane)
        return True

    def oldest_by_class(self) -> dict[str, float]:
        """Return when the one who has waited longest of each class that waits came (monotonic seconds)."""
        found: dict[str, float] = {}
        for waiting in self._arrivals:
            found.setdefault(waiting.klass, waiting.job.arrival)
            if len(found) == len(self._by_class):
                break
        return found

    def drop(self, waiting: Waiting, why: Drop) -> None:
        """Take `waiting` out and tell it why."""
        if self.cancel(waiting):
            waiting.dropped(why)

    def drop_oldest(self, why: Drop) -> None:
        """Take the one out who came first. Only while somebody waits."""
        self.drop(next(iter(self._arrivals)), why)

    def spare(self, on: bool) -> None:
        """Hold it against nobody who waits now, or comes from now on, that it waits; or again against newcomers."""
        self._sparing = on
        if on:
            for waiting in self._arrivals:
                waiting.spared = True
            self.spared = len(self._arrivals)

    def drop_all(self, why: Drop) -> None:
        """Empty the queue."""
        for waiting in tuple(self._arrivals):
            self.drop(waiting, why)

    def _leave(self, waiting: Waiting) -> None:
        lane, handle = waiting.lane, waiting.handle
        assert lane is not None
        assert handle is not None
        lane.heap.remove(handle)
        del lane.members[waiting]
        lane.items -= waiting.items
        lane.express -= waiting.express
        if waiting.spared:
            self.spared -= 1
        if lane.members:
            lane.tokens -= waiting.tokens
        else:
            lane.tokens = 0.0
            del self._lanes[lane.key]
        waiting.lane = waiting.handle = None
        del self._arrivals[waiting]
        self.items -= waiting.items
        # A sum of floats must not creep away from zero over days.
        self.tokens = self.tokens - waiting.tokens if self._arrivals else 0.0
        if len(self._lateness) > _KEPT_LATENESS + 4 * len(self._arrivals):
            self._lateness[:] = [entry for entry in self._lateness if entry[2].lane is not None]
            heapify(self._lateness)
        left = self._by_class[waiting.klass] - 1
        if left:
            self._by_class[waiting.klass] = left
        else:
            del self._by_class[waiting.klass]

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._clock.call_at(when, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = inf
        now = self._clock.now()
        lateness = self._lateness
        while lateness:
            deadline, _, waiting = lateness[0]
            if waiting.lane is not None and deadline > now:
                self._arm(deadline)
                return
            heappop(lateness)
            if waiting.lane is not None:
                self.drop(waiting, Drop.EXPIRED)
