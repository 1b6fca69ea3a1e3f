"""Whether upstreams may have more merged calls."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.now import monotonic
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.lease import Ledger

__all__ = ["MergeSlots"]


class MergeSlots:
    """`depth` calls per endpoint. Endpoints that may not be asked do not count, unless none may."""

    __slots__ = ("_depth", "_endpoints", "_ledger", "_only", "ceiling")

    def __init__(self, endpoints: Sequence[Endpoint], depth: int, ledger: Ledger) -> None:
        self._endpoints = tuple(endpoints)
        self._depth = depth
        self._ledger = ledger
        self.ceiling = 1 << 30
        """No more than these may be: upstreams are away, or only just back."""
        self._only = self._endpoints[0] if len(self._endpoints) == 1 else None
        """The only one there is, which is asked whatever its state: each newcomer wants to know at once."""

    @property
    def calls(self) -> int:
        """How many are in flight."""
        return len(self._ledger.merge)

    def free(self) -> int:
        """Return how many more calls may be in flight."""
        depth, at, more = self._depth, self._ledger.at, self.ceiling - len(self._ledger.merge)
        if self._only is not None:
            return max(0, min(depth - at.get(self._only, 0), more))
        if more <= 0:
            return 0
        return sum([max(0, depth - at.get(endpoint, 0)) for endpoint in self._open()])

    def idle(self) -> bool:
        """Return whether some upstream has no merged call."""
        at = self._ledger.at
        if self._only is not None:
            return self._only not in at
        return any(endpoint not in at for endpoint in self._open())

    def full(self) -> list[Endpoint]:
        """Return the endpoints that may not have another call."""
        return [endpoint for endpoint, calls in self._ledger.at.items() if calls >= self._depth]

    def _open(self) -> Sequence[Endpoint]:
        now = monotonic()
        return [endpoint for endpoint in self._endpoints if endpoint.available(now)] or self._endpoints
