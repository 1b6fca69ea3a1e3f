"""The two answers the proxy asks for on the request path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Choice", "Verdict"]

_FIRST: Final[tuple[int, ...]] = (0,)


@dataclass(slots=True, init=False)
class Verdict:
    """Whether a newcomer may queue. Nobody changes one."""

    admitted: bool
    reason: str
    """`ok`, `idle`, `no_slo`, `no_model`; for one predicted late `room`, `disproved`, `trial`, `probe`; or why not:
    `slo_infeasible`."""
    predicted_s: float | None
    """Predicted seconds from now to the end of the promise in question; None when nothing is known."""
    retry_after_s: float
    """For a refusal: when trying again is expected to help. 0 when admitted."""

    def __init__(self, admitted: bool, reason: str, predicted_s: float | None, retry_after_s: float) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.admitted = admitted
        self.reason = reason
        self.predicted_s = predicted_s
        self.retry_after_s = retry_after_s


@dataclass(slots=True, init=False)
class Choice:
    """What to do with the ordered head of the queue at a dispatch opportunity. Nobody changes one."""

    take: int
    """How many of the candidates that are neither shed nor passed to send now, from the head."""
    shed: tuple[int, ...]
    """Indices of candidates that can no longer make their deadline."""
    passed: tuple[int, ...]
    """Indices of candidates that go on waiting although some behind them go now."""

    def __init__(self, take: int, shed: tuple[int, ...], passed: tuple[int, ...] = ()) -> None:
        self.take = take
        self.shed = shed
        self.passed = passed

    def sent(self, count: int) -> Sequence[int]:
        """Return the indices of the candidates, `count` in all, that go now, in order."""
        if not self.shed and not self.passed:
            if self.take == 1 and count > 0:
                return _FIRST
            return range(min(self.take, count))
        out = {*self.shed, *self.passed}
        return [index for index in range(count) if index not in out][: max(0, self.take)]
