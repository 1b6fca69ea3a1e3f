"""Switchback experiments: which of two settings is better, on live traffic.

Two arms behind one queue disturb each other, so they take turns in time: whole blocks under one arm, long compared
with a request, the first part of each block thrown away because it still serves the other arm's requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from controller.measure.stats import SPRT

__all__ = ["Arm", "Block", "Switchback"]

Verdict = Literal["running", "a", "b", "no_difference", "harm"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the two settings compared."""

    law: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Block:
    """What was counted in the part of a block that belongs to its arm alone."""

    arm: Literal["a", "b"]
    start: float
    on_time: int = 0
    late: int = 0
    counted_s: float = 0.0

    @property
    def goodput(self) -> float:
        """On-time answers a second."""
        return self.on_time / self.counted_s if self.counted_s > 0.0 else 0.0


class Switchback:
    """Alternates arms in randomised pairs of blocks and says when one is better.

    Each pair holds both arms in random order, so that a trend in the traffic favours neither. The pair's difference
    in goodput, relative to the pair's mean, goes into a mixture sequential probability ratio test (Robbins 1970;
    Johari et al. 2017): with n differences of mean d and variance s^2, and a normal prior of variance `tau`^2 on the
    effect,

        L = sqrt(s^2 / (s^2 + n tau^2)) * exp(n^2 tau^2 d^2 / (2 s^2 (s^2 + n tau^2)))

    and the first L >= 1 / `alpha` decides. It may be looked at after every pair without spoiling the error rate. An
    SPRT on the late share of the candidate `b` ends the experiment at once when it breaks the promise.

    Times are seconds of the monotonic clock; `rng` draws the order within pairs.
    """

    def __init__(
        self,
        a: Arm,
        b: Arm,
        *,
        now: float,
        rng: random.Random,
        block_s: float = 120.0,
        settle_s: float = 24.0,
        most_pairs: int = 60,
        alpha: float = 0.05,
        tau: float = 0.05,
        allowed_late: float = 0.01,
    ) -> None:
        if not 0.0 <= settle_s < block_s:
            raise ValueError(f"a block of {block_s:g} s must be longer than its settling time of {settle_s:g} s")
        if most_pairs < 3:
            raise ValueError(f"an experiment needs at least 3 pairs of blocks, not {most_pairs}")
        self.arms = {"a": a, "b": b}
        self.block_s = block_s
        self.settle_s = settle_s
        self.most_pairs = most_pairs
        self.verdict: Verdict = "running"
        self.differences: list[float] = []
        self._alpha = alpha
        self._tau = tau
        self._rng = rng
        self._harm = SPRT(allowed_late, 4.0 * allowed_late)
        self._pair: list[Block] = []
        self._block = self._next_block(now)

    @property
    def arm(self) -> Literal["a", "b"]:
        """Whose turn it is."""
        return self._block.arm

    def observe(self, dispatched: float, late: bool) -> None:
        """Count one answer by when it was dispatched."""
        if self.verdict != "running" or dispatched < self._block.start + self.settle_s:
            return
        self._block.late += late
        self._block.on_time += not late
        if self._block.arm == "b" and self._harm.add(late) > 0:
            self.verdict = "harm"

    def tick(self, now: float) -> bool:
        """End the block when it is over; says whether another arm's turn begins, or the verdict is in."""
        if self.verdict != "running":
            return True
        if now < self._block.start + self.block_s:
            return False
        self._block.counted_s = now - self._block.start - self.settle_s
        self._pair.append(self._block)
        if len(self._pair) == 2:
            self._close_pair()
        if self.verdict == "running":
            self._block = self._next_block(now)
        return True

    def likelihood_ratio(self) -> float:
        """Return L, the evidence so far that the arms differ; 1 before three pairs."""
        n = len(self.differences)
        if n < 3:
            return 1.0
        mean = sum(self.differences) / n
        variance = max(1e-6, sum((d - mean) ** 2 for d in self.differences) / (n - 1))
        prior = self._tau * self._tau
        exponent = n * n * prior * mean * mean / (2.0 * variance * (variance + n * prior))
        return math.sqrt(variance / (variance + n * prior)) * math.exp(min(700.0, exponent))

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        n = len(self.differences)
        return {
            "arms": {name: {"law": arm.law, "options": dict(arm.options)} for name, arm in self.arms.items()},
            "turn": self.arm,
            "verdict": self.verdict,
            "pairs": n,
            "mean_difference": sum(self.differences) / n if n else None,
            "likelihood_ratio": self.likelihood_ratio(),
        }

    def _next_block(self, now: float) -> Block:
        if self._pair:
            return Block("b" if self._pair[0].arm == "a" else "a", now)
        return Block("a" if self._rng.random() < 0.5 else "b", now)

    def _close_pair(self) -> None:
        by_arm = {block.arm: block.goodput for block in self._pair}
        self._pair = []
        mean = (by_arm["a"] + by_arm["b"]) / 2.0
        if mean > 0.0:
            self.differences.append((by_arm["b"] - by_arm["a"]) / mean)
        if self.likelihood_ratio() >= 1.0 / self._alpha:
            self.verdict = "b" if sum(self.differences) > 0.0 else "a"
        elif len(self.differences) >= self.most_pairs:
            self.verdict = "no_difference"
