"""Counts of values by size, small enough to travel with every step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ITERATION_BOUNDS", "NO_ITERATION", "NO_QUEUE", "QUEUE_BOUNDS", "Distribution", "Histogram"]

QUEUE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0,
                40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
"""Seconds; vLLM's boundaries for request latencies, with more of them below 300 ms."""
ITERATION_BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
"""Tokens; vLLM's boundaries."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many values fell where."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...] = ()
    """Values at most bounds[i] and above bounds[i - 1], then those above all; empty before the first."""
    total: float = 0.0
    """Sum of the values."""


NO_QUEUE, NO_ITERATION = Distribution(QUEUE_BOUNDS), Distribution(ITERATION_BOUNDS)


class Histogram:
    """Collects values for a Distribution."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """Return what was counted so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)
