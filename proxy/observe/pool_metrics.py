"""What is counted of one pool: its series, found once, and how requests are entered into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from controller.observation import Observation, Result
from controller.slo import LATENCIES, SLO
from proxy.observe.families import Families
from proxy.observe.hooks import ClosedBy
from proxy.observe.instruments import Count, Histogram, HistogramFamily

__all__ = [
    "CLOSE_REASONS",
    "OTHER",
    "QUEUED",
    "SERVED",
    "SHED_REASONS",
    "UPSTREAM_OUTCOMES",
    "PoolMetrics",
    "upstream_outcome",
]

SHED_REASONS = (
    "queue_full", "class_queue_full", "slo_infeasible", "shed_deadline", "queue_timeout", "rate_limited_requests",
    "rate_limited_tokens", "too_many_inflight", "draining", "no_upstream", "out_of_connections", "memory_full",
    "keeper_away",
)  # fmt: skip
"""The reasons of `proxy.outcome` that mean a request was turned away or dropped, not that it was at fault."""
CLOSE_REASONS = tuple(reason.value for reason in ClosedBy)
OTHER: Final = "other"
"""Stands for every label value beyond what the configuration and the code know."""
SERVED: Final = frozenset({Result.OK, Result.FAILED, Result.TIMEOUT})
QUEUED: Final = frozenset({Result.OK, Result.FAILED, Result.TIMEOUT, Result.SHED, Result.CANCELLED})
FOLLOW_UPS = ("kept", "away", "unknown")
"""What is known of the keeper of what a request refers to."""
UPSTREAM_OUTCOMES = ("ok", "failed", "timeout", "overloaded", "wrong_model", "unauthorised", "rejected")
"""How a call can end for the upstream that was asked. `rejected` is what it holds against the request itself."""
_OVERLOADED: Final = frozenset({429, 503, 529})
_UNAUTHORISED: Final = frozenset({401, 403})


def upstream_outcome(result: Result, code: int, route: str) -> str:
    """Return what a served request of `route` that ended with status `code` is for its upstream.

    Its own failures are told from what it says about the request, which is mostly the client's mistake, and from
    the two that are somebody's configuration: a model it does not have and a key it does not know.
    """
    if result is not Result.FAILED:
        return result.value
    if code in _OVERLOADED:
        return "overloaded"
    if code in _UNAUTHORISED:
        return "unauthorised"
    if code == 404 and route != "relay":
        return "wrong_model"
    return "rejected" if 400 <= code < 500 else "failed"


class PoolMetrics:
    """The series of one pool, found once."""

    def __init__(self, families: Families, name: str, classes: Iterable[str], slo: SLO) -> None:
        self.name = name
        self.classes = frozenset(classes)
        self.slo_of: Callable[[], SLO] = lambda: slo
        self.duration = _per_class(families.duration, name, self.classes)
        self.ttft = _per_class(families.ttft, name, self.classes)
        self.tpot = _per_class(families.tpot, name, self.classes)
        self.queue = _per_class(families.queue, name, self.classes)
        self.batch_size = families.batch_size.labels(name)
        self.window = families.window.labels(name)
        self.tick = families.tick.labels(name)
        self.prompt_tokens = families.prompt_tokens.labels(name)
        self.output_tokens = families.output_tokens.labels(name)
        self._judged = {latency: families.judged.labels(name, latency) for latency in LATENCIES}
        self._missed = {latency: families.missed.labels(name, latency) for latency in LATENCIES}
        self.slo: SLO | None = None
        """The promise that requests are judged by."""
        self._targets: tuple[tuple[int, float, Count, Count], ...] = ()
        """(place in LATENCIES, target, judged, missed) for each of its targets."""
        self.closed = {reason: families.closed.labels(name, reason) for reason in CLOSE_REASONS}
        self.shed = {reason: families.shed_total.labels(name, reason) for reason in SHED_REASONS}
        self.retries = families.retries.labels(name)
        self.follow_ups = {result: families.follow_ups.labels(name, result) for result in FOLLOW_UPS}
        self.upstreams: dict[tuple[str, str], Count] = {}
        self.rules: dict[str, Count] = {}

    def count(self, klass: str, result: Result, alike: Sequence[Observation], *, streamed: bool) -> None:
        """Count requests of one class that ended in one way."""
        if klass not in self.classes:
            klass = OTHER
        queue, e2e = [obs.queue_s for obs in alike], [obs.done - obs.arrival for obs in alike]
        ttft = [value for obs in alike if (value := obs.ttft_s) is not None] if streamed else []
        tpot = [value for obs in alike if (value := obs.tpot_s) is not None] if streamed else []
        self.ttft[klass].extend(ttft)
        self.tpot[klass].extend(tpot)
        if result in QUEUED:
            self.queue[klass].extend(queue)
        if result in SERVED:
            self.duration[klass].extend(e2e)
        # A prompt that was turned away cost nobody a token.
        self.prompt_tokens.value += sum([obs.prompt_tokens for obs in alike if obs.dispatched is not None])
        self.output_tokens.value += sum([obs.output_tokens for obs in alike])
        if result is Result.OK:
            for index, target, judged, missed in self._targets:
                values = (ttft, tpot, e2e, queue)[index]
                judged.value += len(values)
                missed.value += sum([value > target for value in values])
        elif result is Result.TIMEOUT:
            for _, _, judged, missed in self._targets:
                judged.value += len(alike)
                missed.value += len(alike)

    def judge_anew(self) -> None:
        """Judge by the promise in force from now on."""
        self.slo = self.slo_of()
        self._targets = tuple(
            (LATENCIES.index(name), target, self._judged[name], self._missed[name])
            for name, target in self.slo.targets()
        )


def _per_class(family: HistogramFamily, pool: str, classes: Iterable[str]) -> Mapping[str, Histogram]:
    return {klass: family.labels(pool, klass) for klass in (*classes, OTHER)}
