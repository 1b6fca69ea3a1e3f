"""The promise: a latency target at a quantile, for each of the latencies callers feel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller.observation import Observation, Result

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

    @property
    def deadline_s(self) -> float | None:
        """Seconds after arrival by which an answer must be complete; None when e2e is not promised."""
        return self.e2e_s

    def violated_by(self, obs: Observation) -> tuple[str, ...]:
        """Name the targets `obs` missed. A timeout misses all; a request that was not served misses none."""
        if obs.result is Result.TIMEOUT:
            return tuple(name for name, _ in self.targets())
        if obs.result is not Result.OK:
            return ()
        # Target by target, in the order of LATENCIES: this runs once a request, and most promise only one or two.
        missed: tuple[str, ...] = ()
        if obs.streamed:
            if self.ttft_s is not None and (ttft := obs.ttft_s) is not None and ttft > self.ttft_s:
                missed = ("ttft",)
            if self.tpot_s is not None and (tpot := obs.tpot_s) is not None and tpot > self.tpot_s:
                missed += ("tpot",)
        if self.e2e_s is not None and obs.done - obs.arrival > self.e2e_s:
            missed += ("e2e",)
        if self.queue_s is not None and obs.queue_s > self.queue_s:
            missed += ("queue",)
        return missed
