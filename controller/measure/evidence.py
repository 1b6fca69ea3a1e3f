"""What the samples of a generation prove about its setpoints.

Queue time and service time are different signals. A batch that is too large shows in the *service*; a queue that is
too long is shortened by capacity and admission. Shrinking the batch because end-to-end latency is high removes
capacity, lengthens the queue and spirals down, so the batch size only ever answers to the budgets below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from controller.load import Load
from controller.measure.samples import Sample
from controller.slo import SLO

__all__ = ["Budget", "Evidence", "budgets", "decided_by_length", "weigh"]

Mode = Literal["merge", "gate"]


class Budget(NamedTuple):
    """The part of a target that the upstream may use."""

    latency: str
    """The promised latency it derives from."""
    metric: Literal["service", "first", "tpot"]
    """The upstream-owned time it bounds."""
    limit_s: float


def budgets(slo: SLO, mode: Mode, share: float | None = None) -> tuple[Budget, ...]:
    """Translate targets into budgets of upstream-owned time.

    merge: a request waits for the batch in flight and runs in the next, so a batch may take half of e2e. gate: a
    sequence runs beside others from its dispatch on, so it may take 85 % of e2e, and its tokens all of tpot. ttft
    answers to the queue and to prefill, which admission looks after; only where nothing else is promised it bounds
    the concurrency, too, and the upstream may use half of it. `share` replaces the part of e2e. A
    target on queue time bounds nothing upstream.
    """
    found: list[Budget] = []
    if slo.e2e_s is not None:
        found.append(Budget("e2e", "service", slo.e2e_s * (share or (0.5 if mode == "merge" else 0.85))))
    if mode == "gate":
        if slo.tpot_s is not None:
            found.append(Budget("tpot", "tpot", slo.tpot_s))
        if slo.ttft_s is not None and not found:
            found.append(Budget("ttft", "first", 0.5 * slo.ttft_s))
    return tuple(found)


class Evidence(NamedTuple):
    """Counts of samples against the budgets, and how close the rest came."""

    n: int
    late: int
    """Over a budget, timed out, or already overdue in flight."""
    overdue: int
    """The part of `late` that is still in flight: a lower bound that is already too much."""
    close: int
    """Over 90 % of a budget, the late ones included."""
    worst: float
    """Largest ratio of measured time to budget."""
    growing: float
    """The same over the times that grow with the load; the first token's grows with the prompt instead."""
    typical: float
    """Median ratio."""
    binding: str
    """The latency whose budget was used up most."""

    @property
    def late_share(self) -> float:
        """Late over all."""
        return self.late / self.n if self.n else 0.0


_TIMEOUT_RATIO: Final = 10.0
_UNKNOWN_S: Final = 60.0
_FEW_TOKENS: Final = 16
_FEW_LENGTHS: Final = 16
_QUIET_S: Final = 5.0
_NOTHING: Final = Evidence(0, 0, 0, 0, 0.0, 0.0, 0.0, "")


def decided_by_length(service_s: float, tokens: int, typical_tokens: float, limit_s: float) -> bool:
    """Whether only its length makes an answer of `tokens` take longer than `limit_s`.

    It is more than twice as long as is typical, and one of typical length, made as slowly, would have used less than
    half of the time: then no load made it late, and no smaller load would have kept it in time.
    """
    if not typical_tokens or tokens <= 2.0 * typical_tokens:
        return False
    return service_s * typical_tokens / tokens <= 0.5 * limit_s


def weigh(
    samples: Iterable[Sample],
    limits: tuple[Budget, ...],
    load: Load,
    now: float,
    *,
    since: float,
    longest_s: float | None = None,
    last_done: float | None = None,
    least_batch: float = 0.0,
    guard: float = 0.9,
    by_class: Mapping[str, tuple[Budget, ...]] | None = None,
    alone: bool = False,
) -> Evidence:
    """Count `samples` (and calls in flight that were dispatched after `since`) against the budgets.

    `longest_s` is the longest service time that is known to be usual, `last_done` when anything came back last.

    `by_class` holds the budgets of classes that have a promise of their own; their samples are judged by it.

    A sample in time counts only when its batch was at least `least_batch`: a small batch in time says nothing about
    a large one. A request that its caller gave up counts only when it was late already. With `alone` each answer ends
    by itself, and one that is late by its own length (`decided_by_length`) does not count.
    """
    if not limits:
        return _NOTHING
    samples = _without_short(samples, limits)
    typical = 0.0
    if alone:
        samples = list(samples)
        typical = _typical_tokens(samples)
    ratios: list[float] = []
    tightest = ("", 0.0)
    growing = 0.0
    loads = _growing(limits)
    overdue = late = close = 0
    for sample in samples:
        own = by_class.get(sample.klass, limits) if by_class else limits
        ratio, latency = _ratio(sample, own)
        if ratio is None or (ratio <= 1.0 and (not sample.served or sample.batch < least_batch)):
            continue
        if ratio > 1.0 and typical and _by_length(sample, own, typical):
            continue
        if ratio > tightest[1]:
            tightest = (latency, ratio)
        ratios.append(ratio)
        if loads:
            growing = max(growing, _ratio(sample, loads if own is limits else _growing(own))[0] or 0.0)
        late += ratio > 1.0
        close += ratio > guard
    stalled = _stall_s(limits, now, longest_s, last_done)
    for dispatched in load.running:
        if dispatched >= since and now - dispatched > stalled:
            overdue += 1
            ratios.append((now - dispatched) / stalled)
    if overdue and not tightest[0]:
        tightest = (limits[0].latency, 1.0)
    ratios.sort()
    if not ratios:
        return _NOTHING
    return Evidence(
        n=len(ratios),
        late=late + overdue,
        overdue=overdue,
        close=close + overdue,
        worst=ratios[-1],
        growing=growing,
        typical=ratios[len(ratios) // 2],
        binding=tightest[0],
    )


def _growing(limits: tuple[Budget, ...]) -> tuple[Budget, ...]:
    """Return the budgets of times that grow with the load."""
    return tuple(budget for budget in limits if budget.metric != "first")


def _typical_tokens(samples: Sequence[Sample]) -> float:
    """Return the median length of the answers; 0 when too few are known."""
    known = sorted([sample.tokens for sample in samples if sample.tokens])
    return float(known[len(known) // 2]) if len(known) >= _FEW_LENGTHS else 0.0


def _by_length(sample: Sample, limits: tuple[Budget, ...], typical_tokens: float) -> bool:
    """Whether only the length of an answer made it late."""
    if sample.timeout:
        return False
    for budget in limits:
        value: float | None = getattr(sample, budget.metric)
        if value is None or value <= budget.limit_s:
            continue
        if budget.metric != "service" or not decided_by_length(value, sample.tokens, typical_tokens, budget.limit_s):
            return False
    return True


def _without_short(samples: Iterable[Sample], limits: tuple[Budget, ...]) -> Iterable[Sample]:
    """Leave out answers of a few tokens where only pace is promised, unless most are like that.

    The mean over a few tokens measures whether a neighbour's prompt came in between, whatever the concurrency.
    """
    if any(budget.metric != "tpot" for budget in limits):
        return samples
    kept = list(samples)
    long = [sample for sample in kept if not 0 < sample.tokens < _FEW_TOKENS]
    return long if 2 * len(long) > len(kept) else kept


def _ratio(sample: Sample, limits: tuple[Budget, ...]) -> tuple[float | None, str]:
    """Return the largest ratio of measured time to budget, and whose; None when nothing applies."""
    if not limits:
        return None, ""
    if sample.timeout:
        return _TIMEOUT_RATIO, limits[0].latency
    worst: float | None = None
    latency = ""
    for budget in limits:
        value: float | None = getattr(sample, budget.metric)
        if value is not None and (worst is None or value / budget.limit_s > worst):
            worst, latency = value / budget.limit_s, budget.latency
    return worst, latency


def _stall_s(limits: tuple[Budget, ...], now: float, longest_s: float | None, last_done: float | None) -> float:
    """Return for how long a call may be in flight before it counts as late.

    With an e2e target, its budget. Otherwise a call in flight shows neither first token nor pace, and may just be a
    long one. Then it counts only when it runs twice as long as any before (a minute while nothing is known), and
    nothing else has come back for as long as the longest took.
    """
    whole = [budget.limit_s for budget in limits if budget.metric == "service"]
    if whole:
        return whole[0]
    if longest_s is not None and last_done is not None and now - last_done < max(longest_s, _QUIET_S):
        return math.inf
    return max(_UNKNOWN_S if longest_s is None else 2.0 * longest_s, 10.0 * max(budget.limit_s for budget in limits))
