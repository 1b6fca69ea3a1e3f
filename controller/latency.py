"""What the last minute looked like: quantiles with their uncertainty, and exact counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from controller.observation import Observation, Result
from controller.sketch import Sketch, SlidingSketch
from controller.slo import SLO
from controller.stats import proportion_interval, proves_above, proves_below, quantile_ranks

__all__ = ["METRICS", "QUANTILES", "LatencyWindow", "attainment", "describe"]

METRICS = ("ttft", "tpot", "e2e", "queue", "service")
QUANTILES = (0.5, 0.95, 0.99)


class LatencyWindow:
    """Sliding quantiles of the five latencies of served requests, and exact counts of how requests ended.

    Quantiles are for people; decisions are made on the counts. Refused, shed and failed requests are counted, and
    kept out of the latencies.
    """

    def __init__(self, window_s: float = 60.0, slices: int = 10) -> None:
        self.window_s = window_s
        self._slices = slices
        self._slice_s = window_s / slices
        self._sketches = {name: SlidingSketch(window_s, slices) for name in METRICS}
        self._counts: dict[int, Counter[str]] = {}
        self._open: int | None = None

    def add(self, obs: Observation, slo: SLO) -> tuple[str, ...]:
        """Count one finished request; returns the targets it missed."""
        now, arrival, dispatched, result = obs.done, obs.arrival, obs.dispatched, obs.result
        index = int(now // self._slice_s)
        if index != self._open:
            self._turn_to(index)
        counts = self._in_open
        missed = slo.violated_by(obs)
        if result is Result.OK:
            counts["ok"] += 1
        else:
            counts[result.value] += 1
            if result is not Result.TIMEOUT:
                return missed
        if missed:
            counts["late"] += 1
            for name in missed:
                counts["late:" + name] += 1
        self._e2e.add(now - arrival if now > arrival else 0.0)
        if dispatched is not None:
            self._queue.add(dispatched - arrival if dispatched > arrival else 0.0)
            self._service.add(now - dispatched if now > dispatched else 0.0)
        if obs.streamed:
            if (ttft := obs.ttft_s) is not None:
                self._ttft.add(ttft if ttft > 0.0 else 0.0)
                counts["n:ttft"] += 1
            if (tpot := obs.tpot_s) is not None:
                self._tpot.add(tpot if tpot > 0.0 else 0.0)
                counts["n:tpot"] += 1
        return missed

    def _turn_to(self, index: int) -> None:
        """Keep at hand what requests that end in slice `index` are counted in."""
        counts = self._counts.get(index)
        if counts is None:
            self._expire(index)
            counts = self._counts[index] = Counter()
        self._open, self._in_open = index, counts
        slices = [self._sketches[name].at(index) for name in METRICS]
        self._ttft, self._tpot, self._e2e, self._queue, self._service = slices

    def counts(self, now: float) -> Counter[str]:
        """Return the counts of the window: results by name, `late`, `late:<target>`, `n:<streamed latency>`."""
        self._expire(int(now // self._slice_s))
        total: Counter[str] = Counter()
        for counts in self._counts.values():
            total.update(counts)
        return total

    def sketch(self, metric: str, now: float) -> Sketch:
        """Return the merged sketch of one of METRICS."""
        return self._sketches[metric].merged(now)

    def quantiles(self, now: float) -> dict[str, Any]:
        """Return every latency's quantiles, JSON-ready."""
        return {name: describe(self.sketch(name, now)) for name in METRICS}

    def _expire(self, index: int) -> None:
        for old in [key for key in self._counts if key <= index - self._slices]:
            del self._counts[old]
            if old == self._open:
                self._open = None


def describe(sketch: Sketch) -> dict[str, Any]:
    """Return n, mean, maximum and P50/P95/P99 in milliseconds, each with its exact 95 % binomial interval.

    A bound is None where the sample is too small to give one; showing a number there would be inventing it.
    """
    n = sketch.count
    out: dict[str, Any] = {"n": n}
    if not n:
        return out
    out["mean_ms"] = 1000.0 * sketch.total / n
    out["max_ms"] = 1000.0 * sketch.maximum
    for q in QUANTILES:
        low, high = quantile_ranks(n, q)
        value, lower, upper = sketch.at_ranks((math.ceil(q * n),)) + sketch.at_ranks((max(1, low), high or n))
        out[f"p{round(100 * q)}"] = {
            "value_ms": 1000.0 * value,
            "low_ms": 1000.0 * lower if low >= 1 else None,
            "high_ms": 1000.0 * upper if high is not None else None,
        }
    return out


def attainment(slo: SLO, counts: Counter[str]) -> dict[str, Any]:
    """Say, target by target, whether the promise is `met`, `missed` or `unproven` at 95 %, on exact counts.

    `met` needs the evidence: with a 99 % promise, 299 requests at none late, 473 at one, 628 at two.
    """
    admitted = counts[Result.OK.value] + counts[Result.TIMEOUT.value]
    allowed = 1.0 - slo.quantile
    out: dict[str, Any] = {}
    for name, target in slo.targets():
        n = counts["n:" + name] if name in ("ttft", "tpot") else admitted
        n = max(n, counts["late:" + name])
        late = counts["late:" + name]
        low, high = proportion_interval(late, n)
        verdict = (
            "met" if proves_below(late, n, allowed) else "missed" if proves_above(late, n, allowed) else "unproven"
        )
        out[name] = {
            "target_ms": 1000.0 * target,
            "quantile": slo.quantile,
            "n": n,
            "late": late,
            "late_share": late / n if n else None,
            "late_share_low": low,
            "late_share_high": high,
            "verdict": verdict,
        }
    return out
