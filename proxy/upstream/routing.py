"""Which upstream gets the next call."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from proxy.upstream.endpoint import Endpoint

__all__ = ["LeastWork", "RoundRobin", "Router"]


class Router(Protocol):
    """Picks among endpoints."""

    def pick(
        self, endpoints: Sequence[Endpoint], now: float, *, work: float = 0.0, exclude: Collection[Endpoint] = ()
    ) -> Endpoint | None:
        """Return the endpoint to ask for a call of `work` tokens, None when none may be asked.

        `exclude` names those tried already.
        """
        ...


class LeastWork:
    """Send to whoever has the least predicted work outstanding relative to its weight; ties take turns."""

    __slots__ = ("_turn",)

    def __init__(self) -> None:
        self._turn = 0

    def pick(
        self, endpoints: Sequence[Endpoint], now: float, *, work: float = 0.0, exclude: Collection[Endpoint] = ()
    ) -> Endpoint | None:
        """Return the endpoint to ask, None when none may be asked."""
        if len(endpoints) == 1:
            only = endpoints[0]
            return only if only not in exclude and (only.available(now) or only.last_resort(now)) else None
        self._turn += 1
        candidates = _candidates(endpoints, now, exclude)
        if not candidates:
            return None
        shift = self._turn % len(candidates)
        return min(candidates[shift:] + candidates[:shift], key=lambda endpoint: endpoint.score(work))


class RoundRobin:
    """Send to each in turn, more often where the weight is higher (smooth weighted round robin)."""

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit: dict[Endpoint, float] = {}

    def pick(
        self, endpoints: Sequence[Endpoint], now: float, *, work: float = 0.0, exclude: Collection[Endpoint] = ()
    ) -> Endpoint | None:
        """Return the endpoint to ask, None when none may be asked."""
        candidates = _candidates(endpoints, now, exclude)
        if not candidates:
            return None
        credit = self._credit
        if len(credit) > len(endpoints):
            self._credit = credit = {e: credit.get(e, 0.0) for e in endpoints}
        total = 0.0
        for endpoint in candidates:
            credit[endpoint] = credit.get(endpoint, 0.0) + endpoint.weight
            total += endpoint.weight
        best = max(candidates, key=lambda endpoint: credit[endpoint])
        credit[best] -= total
        return best


def _candidates(endpoints: Sequence[Endpoint], now: float, exclude: Collection[Endpoint]) -> list[Endpoint]:
    """Return the first choices, else those that may be asked as a last resort."""
    found = [endpoint for endpoint in endpoints if endpoint not in exclude and endpoint.available(now)]
    if found:
        return found
    return [endpoint for endpoint in endpoints if endpoint not in exclude and endpoint.last_resort(now)]
