"""The one book of what a pool has under way: leases, each opened once and closed once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from controller.load import MAX_RUNNING
from proxy.upstream.endpoint import Endpoint

__all__ = ["GATED", "MERGED", "PASSING", "Book", "Lease", "Ledger"]

PASSING: Final = 0
"""A call that takes no place."""
GATED: Final = 1
"""One sequence that the gate let through."""
MERGED: Final = 2
"""A call that several requests share, or that could be shared."""


class Lease:
    """One call under way. Whoever holds it releases it in a `finally`; releasing twice is harmless."""

    __slots__ = ("_ledger", "_trial", "endpoint", "express", "held", "items", "kind", "opened", "work")

    def __init__(
        self, ledger: Ledger, endpoint: Endpoint, work: float, kind: int, items: int, opened: float, express: bool
    ) -> None:
        self._ledger = ledger
        self.endpoint = endpoint
        self.work = work
        """Predicted work in tokens."""
        self.kind = kind
        self.items = items
        self.opened = opened
        """When its call was sent (monotonic seconds)."""
        self.express = express
        """Whether it is of a class that skips the window."""
        self.held = True
        self._trial = endpoint.entered(work)

    def move(self, endpoint: Endpoint) -> None:
        """Go on at another endpoint, for a retry; the place stays the same."""
        if self.held:
            self.endpoint.left(self.work, self._trial)
            if self.kind == MERGED:
                self._ledger.moved(self.endpoint, endpoint)
            self.endpoint = endpoint
            self._trial = endpoint.entered(self.work)

    def release(self) -> None:
        """Give the place back."""
        if self.held:
            self.held = False
            self.endpoint.left(self.work, self._trial)
            self._ledger.closed(self)


class Book:
    """The calls of one kind under way, counted."""

    __slots__ = ("_calls", "_oldest", "express", "items", "tokens")

    def __init__(self) -> None:
        self._calls: dict[Lease, None] = {}
        """Oldest first."""
        self._oldest: tuple[tuple[float, ...], tuple[int, ...]] | None = ((), ())
        """What `oldest` returned: many ask before a call comes or goes."""
        self.items = 0
        self.tokens = 0.0
        """Predicted work."""
        self.express = 0
        """How many are of express classes."""

    def __len__(self) -> int:
        return len(self._calls)

    def enter(self, lease: Lease) -> None:
        """Count a call."""
        self._calls[lease] = None
        self._oldest = None
        self.items += lease.items
        self.tokens += lease.work
        if lease.express:
            self.express += 1

    def leave(self, lease: Lease) -> None:
        """Count it no more."""
        del self._calls[lease]
        self._oldest = None
        self.items -= lease.items
        # A sum of floats must not creep away from zero over days.
        self.tokens = self.tokens - lease.work if self._calls else 0.0
        if lease.express:
            self.express -= 1

    def oldest(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return when each of the oldest calls was sent, and the items of each, at most MAX_RUNNING of them."""
        oldest = self._oldest
        if oldest is None:
            leases = list(islice(self._calls, MAX_RUNNING))
            oldest = self._oldest = tuple([each.opened for each in leases]), tuple([each.items for each in leases])
        return oldest

    def check(self) -> None:
        """Compare what is counted with the leases that are open. Raises AssertionError."""
        assert self.items == sum([each.items for each in self._calls])
        assert self.express == sum([each.express for each in self._calls])
        assert abs(self.tokens - sum([each.work for each in self._calls])) <= 1e-6 * max(1.0, self.tokens)
        assert all(each.held for each in self._calls)


class Ledger:
    """What a pool has at its upstreams: `gate` and `merge` apart, and each merged call with its endpoint.

    Endpoints count what they have themselves, for routing; `entered` and `left` are called by leases alone.
    """

    __slots__ = ("at", "gate", "leases", "merge", "on_free")

    def __init__(self) -> None:
        self.leases = 0
        """All that are open, those without a place included."""
        self.gate = Book()
        self.merge = Book()
        self.at: dict[Endpoint, int] = {}
        """How many merged calls each endpoint has; none where it is not named."""
        self.on_free: Callable[[], None] = lambda: None
        """Called when a place is free again, whichever kind it was of."""

    def open(
        self,
        endpoint: Endpoint,
        work: float = 0.0,
        kind: int = PASSING,
        items: int = 1,
        now: float = 0.0,
        express: bool = False,
    ) -> Lease:
        """Count a call of `work` tokens at `endpoint`, until its lease is released."""
        lease = Lease(self, endpoint, work, kind, items, now, express)
        self.leases += 1
        if kind == GATED:
            self.gate.enter(lease)
        elif kind == MERGED:
            self.merge.enter(lease)
            self.at[endpoint] = self.at.get(endpoint, 0) + 1
        return lease

    def moved(self, before: Endpoint, after: Endpoint) -> None:
        """A merged call goes on elsewhere."""
        self._gone(before)
        self.at[after] = self.at.get(after, 0) + 1

    def closed(self, lease: Lease) -> None:
        """Count a call no more. Leases call this themselves."""
        self.leases -= 1
        if lease.kind == GATED:
            self.gate.leave(lease)
            self.on_free()
        elif lease.kind == MERGED:
            self.merge.leave(lease)
            self._gone(lease.endpoint)
            self.on_free()

    def check(self) -> None:
        """Compare what is counted with the leases that are open. Raises AssertionError."""
        self.gate.check()
        self.merge.check()
        assert sum(self.at.values()) == len(self.merge)
        assert len(self.gate) + len(self.merge) <= self.leases

    def _gone(self, endpoint: Endpoint) -> None:
        left = self.at[endpoint] - 1
        if left:
            self.at[endpoint] = left
        else:
            del self.at[endpoint]
