"""What became of every simulated request, and the figures one reads from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.observation import Result
from controller.slo import SLO

__all__ = ["Fate", "Figures", "Record"]


class Fate(NamedTuple):
    """How one request ended."""

    arrival: float
    done: float
    result: Result
    dispatched: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    output_tokens: int = 0
    tenant: str = ""
    prompt_tokens: int = 0
    klass: str = "default"

    @property
    def e2e(self) -> float:
        """Seconds from arrival to the end."""
        return self.done - self.arrival


class Figures(NamedTuple):
    """The figures of a span of time, by arrival."""

    offered: int
    goodput: float
    """On-time answers a second."""
    late_share: float
    """Late or timed out, of those admitted and not shed."""
    refused_share: float
    """Refused on arrival, of those offered."""
    shed_share: float
    """Admitted and then dropped, of those offered."""
    failed_share: float
    p50_s: float
    p99_s: float
    """Of end-to-end time of the served; nan when there were none."""


@dataclass
class Record:
    """A whole run."""

    slo: SLO
    horizon_s: float
    fates: list[Fate] = field(default_factory=list)
    setpoints: list[tuple[float, int, float]] = field(default_factory=list)
    """(time, max_batch_size, window_ms) at every tick."""
    upstream_busy_s: float = 0.0
    calls: int = 0
    preemptions: int = 0
    class_slos: Mapping[str, SLO] = field(default_factory=dict)

    def on_time(self, fate: Fate) -> bool:
        """Whether a request kept every promise."""
        if fate.result is not Result.OK:
            return False
        slo = self.class_slos.get(fate.klass, self.slo)
        if slo.e2e_s is not None and fate.e2e > slo.e2e_s:
            return False
        if slo.ttft_s is not None and fate.ttft is not None and fate.ttft > slo.ttft_s:
            return False
        if slo.queue_s is not None and fate.dispatched is not None and fate.dispatched - fate.arrival > slo.queue_s:
            return False
        return not (slo.tpot_s is not None and fate.tpot is not None and fate.tpot > slo.tpot_s)

    def figures(self, start: float = 0.0, end: float | None = None) -> Figures:
        """Return the figures of the requests that arrived in [start, end)."""
        end = self.horizon_s if end is None else end
        span = [fate for fate in self.fates if start <= fate.arrival < end]
        served = [fate for fate in span if fate.result in (Result.OK, Result.TIMEOUT)]
        good = sum(self.on_time(fate) for fate in span)
        total = max(1, len(span))
        latencies = sorted(fate.e2e for fate in served)
        return Figures(
            offered=len(span),
            goodput=good / (end - start),
            late_share=1.0 - good / len(served) if served else 0.0,
            refused_share=sum(fate.result is Result.REFUSED for fate in span) / total,
            shed_share=sum(fate.result is Result.SHED for fate in span) / total,
            failed_share=sum(fate.result is Result.FAILED for fate in span) / total,
            p50_s=quantile(latencies, 0.5),
            p99_s=quantile(latencies, 0.99),
        )

    def goodput_series(self, step_s: float) -> list[float]:
        """Return on-time answers a second in consecutive steps, by arrival."""
        bins = [0] * max(1, math.ceil(self.horizon_s / step_s))
        for fate in self.fates:
            index = int(fate.arrival / step_s)
            if index < len(bins) and self.on_time(fate):
                bins[index] += 1
        return [count / step_s for count in bins]


def quantile(ordered: Sequence[float], q: float) -> float:
    """Return the sample quantile of ascending values; nan when there are none."""
    if not ordered:
        return math.nan
    return ordered[max(1, math.ceil(q * len(ordered))) - 1]
