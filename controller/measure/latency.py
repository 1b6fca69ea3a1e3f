"""What the last minute looked like: quantiles with their uncertainty, and exact counts."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

from controller.measure.sketch import Sketch, SlidingSketch
from controller.measure.stats import proportion_interval, proves_above, proves_below, quantile_ranks
from controller.observation import Observation, Result
from controller.slo import SLO

__all__ = ["METRICS", "QUANTILES", "LatencyWindow", "attainment", "describe", "violations"]

METRICS = ("ttft", "tpot", "e2e", "queue", "service")
QUANTILES = (0.5, 0.95, 0.99)
_OK: Final = Result.OK
_TIMEOUT: Final = Result.TIMEOUT


def violations(slo: SLO, obs: Observation) -> tuple[str, ...]:
    """Name the targets `obs` missed. A timeout misses all; a request that was not served misses none."""
    if obs.result is _TIMEOUT:
        return tuple([name for name, _ in slo.targets()])
    if obs.result is not _OK:
        return ()
    # Target by target, in the order of LATENCIES: this runs once a request, and most promise only one or two.
    missed: tuple[str, ...] = ()
    if obs.streamed:
        if (target := slo.ttft_s) is not None and (ttft := obs.ttft_s) is not None and ttft > target:
            missed = ("ttft",)
        if (target := slo.tpot_s) is not None and (tpot := obs.tpot_s) is not None and tpot > target:
            missed += ("tpot",)
    if (target := slo.e2e_s) is not None and obs.done - obs.arrival > target:
        missed += ("e2e",)
    if (target := slo.queue_s) is not None and obs.queue_s > target:
        missed += ("queue",)
    return missed


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
        result, done = obs.result, obs.done
        index = int(done // self._slice_s)
        if index != self._open:
            self._turn_to(index)
        counts = self._in_open
        missed = violations(slo, obs)
        if result is _OK:
            counts["ok"] += 1
        else:
            counts[result.value] += 1
            if result is not _TIMEOUT:
                return missed
        if missed:
            counts["late"] += 1
            for name in missed:
                counts["late:" + name] += 1
        arrival = obs.arrival
        self._e2e.add(_since(arrival, done))
        if (dispatched := obs.dispatched) is not None:
            self._queue.add(_since(arrival, dispatched))
            self._service.add(_since(dispatched, done))
        if obs.streamed:
            if (first_byte := obs.first_byte) is not None:
                counts["n:ttft"] += 1
                self._ttft.add(_since(arrival, first_byte))
            if (tpot := obs.tpot_s) is not None:
                counts["n:tpot"] += 1
                self._tpot.add(max(0.0, tpot))
        return missed

    def _turn_to(self, index: int) -> None:
        """Keep at hand what requests that end in slice `index` are counted in."""
        counts = self._counts.get(index)
        if counts is None:
            self._expire(index)
            counts = self._counts[index] = Counter()
        self._open, self._in_open = index, counts
        self._ttft, self._tpot, self._e2e, self._queue, self._service = [
            self._sketches[name].at(index) for name in METRICS
        ]

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


def _since(begin: float, end: float) -> float:
    """Return the seconds between two moments, never below 0."""
    return end - begin if end > begin else 0.0


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
    bounds = [quantile_ranks(n, q) for q in QUANTILES]
    wanted = [(math.ceil(q * n), max(1, low), high or n) for q, (low, high) in zip(QUANTILES, bounds, strict=True)]
    ranks = tuple(sorted({rank for three in wanted for rank in three}))
    values = dict(zip(ranks, sketch.at_ranks(ranks), strict=True))
    for q, (low, high), three in zip(QUANTILES, bounds, wanted, strict=True):
        value, lower, upper = [values[rank] for rank in three]
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
