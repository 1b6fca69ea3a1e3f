"""The calls that a pool has under way at its upstreams, counted."""

from __future__ import annotations

from itertools import islice

from controller.load import MAX_RUNNING
from proxy.upstream.lease import Lease

__all__ = ["UnderWay"]


class UnderWay:
    """Counts what leases stand for, from `took` until `gave_back`; each of them once."""

    __slots__ = ("_calls", "_express", "_oldest", "items", "tokens")

    def __init__(self) -> None:
        self._calls: dict[Lease, tuple[float, int]] = {}
        """When each was sent, and its items; oldest first."""
        self._express: set[Lease] = set()
        self._oldest: tuple[tuple[float, ...], tuple[int, ...]] | None = ((), ())
        """What `oldest` returned: many ask before a call comes or goes."""
        self.items = 0
        self.tokens = 0.0
        """Predicted work."""

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def express(self) -> int:
        """How many were let through for express classes."""
        return len(self._express)

    def took(self, lease: Lease, now: float, items: int, *, express: bool = False) -> None:
        """Count a call of `items` that `lease` was granted for at `now`."""
        self._calls[lease] = (now, items)
        self._oldest = None
        self.items += items
        self.tokens += lease.work
        if express:
            self._express.add(lease)

    def gave_back(self, lease: Lease) -> None:
        """Count it no more."""
        self.items -= self._calls.pop(lease)[1]
        self._oldest = None
        # A sum of floats must not creep away from zero over days.
        self.tokens = self.tokens - lease.work if self._calls else 0.0
        self._express.discard(lease)

    def oldest(self) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Return when each of the oldest calls was sent, and the items of each, at most MAX_RUNNING of them."""
        oldest = self._oldest
        if oldest is None:
            entries = list(islice(self._calls.values(), MAX_RUNNING))
            oldest = self._oldest = tuple([entry[0] for entry in entries]), tuple([entry[1] for entry in entries])
        return oldest
