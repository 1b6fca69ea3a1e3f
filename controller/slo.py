"""The promise: a latency target at a quantile, for each of the latencies callers feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LATENCIES", "SLO"]

LATENCIES = ("ttft", "tpot", "e2e", "queue")
"""The latencies a target can be set on. `service` is measured too, but nobody promises it."""


@dataclass(frozen=True, slots=True)
class SLO:
    """Targets in seconds; None means that latency is not promised. Raises ValueError for a bad value."""

    e2e_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    queue_s: float | None = None
    quantile: float = 0.99
    """The share of admitted requests that must meet every target."""

    def __post_init__(self) -> None:
        if not 0.5 <= self.quantile < 1.0:
            raise ValueError(f"an SLO quantile lies in [0.5, 1), not {self.quantile}")
        for name, target in self.targets():
            if not target > 0.0:
                raise ValueError(f"the {name} target must be above 0 s, not {target}")

    def targets(self) -> Iterator[tuple[str, float]]:
        """Yield (latency, target in seconds) for every latency that is promised."""
        for name in LATENCIES:
            target: float | None = getattr(self, f"{name}_s")
            if target is not None:
                yield name, target
