"""The two answers the proxy asks for on the request path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Choice", "Verdict"]


class Verdict(NamedTuple):
    """Whether a newcomer may queue."""

    admitted: bool
    reason: str
    """`ok`, `idle`, `probe`, `no_slo`, `no_model`; or why not: `slo_infeasible`."""
    predicted_s: float | None
    """Predicted seconds from now to the end of the promise in question; None when nothing is known."""
    retry_after_s: float
    """For a refusal: when trying again is expected to help. 0 when admitted."""


class Choice(NamedTuple):
    """What to do with the ordered head of the queue at a dispatch opportunity."""

    take: int
    """How many of the candidates that are neither shed nor passed to send now, from the head."""
    shed: tuple[int, ...]
    """Indices of candidates that can no longer make their deadline."""
    passed: tuple[int, ...] = ()
    """Indices of candidates that go on waiting although some behind them go now."""

    def sent(self, count: int) -> Sequence[int]:
        """Return the indices of the candidates, `count` in all, that go now, in order."""
        if not self.shed and not self.passed:
            return range(min(self.take, count))
        out = {*self.shed, *self.passed}
        return [index for index in range(count) if index not in out][: max(0, self.take)]
