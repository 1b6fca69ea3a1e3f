"""How many merged calls each upstream has, and whether it may have more."""

from __future__ import annotations

from collections.abc import Sequence

from proxy.now import monotonic
from proxy.upstream.endpoint import Endpoint

__all__ = ["MergeSlots"]


class MergeSlots:
    """`depth` calls per endpoint. Endpoints that may not be asked do not count, unless none may."""

    __slots__ = ("_calls", "_depth", "_endpoints", "_only", "calls", "ceiling")

    def __init__(self, endpoints: Sequence[Endpoint], depth: int) -> None:
        self._endpoints = tuple(endpoints)
        self._depth = depth
        self._calls = dict.fromkeys(endpoints, 0)
        self.calls = 0
        """How many are in flight."""
        self.ceiling = 1 << 30
        """No more than these may be: upstreams are away, or only just back."""
        self._only = self._endpoints[0] if len(self._endpoints) == 1 else None
        """The only one there is, which is asked whatever its state: each newcomer wants to know at once."""

    def free(self) -> int:
        """Return how many more calls may be in flight."""
        depth, calls, more = self._depth, self._calls, self.ceiling - self.calls
        if self._only is not None:
            return max(0, min(depth - calls[self._only], more))
        if more <= 0:
            return 0
        return sum([depth - calls[endpoint] for endpoint in self._open() if calls[endpoint] < depth])

    def idle(self) -> bool:
        """Return whether some upstream has no merged call."""
        calls = self._calls
        if self._only is not None:
            return calls[self._only] == 0
        return any(calls[endpoint] == 0 for endpoint in self._open())

    def full(self) -> list[Endpoint]:
        """Return the endpoints that may not have another call."""
        return [endpoint for endpoint, calls in self._calls.items() if calls >= self._depth]

    def taken(self, endpoint: Endpoint) -> None:
        """Count one more call."""
        self._calls[endpoint] += 1
        self.calls += 1

    def freed(self, endpoint: Endpoint) -> None:
        """Count one call less."""
        self._calls[endpoint] -= 1
        self.calls -= 1

    def _open(self) -> Sequence[Endpoint]:
        now = monotonic()
        return [endpoint for endpoint in self._endpoints if endpoint.available(now)] or self._endpoints
