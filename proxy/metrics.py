"""Everything the data plane counts, under names that begin with `trimtab_`.

The core calls the methods of `Metrics`; none of them looks a label up after the first time. Gauges are not kept
here: `proxy.gauges` reads them from the pools when somebody scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from controller.observation import Observation, Result
from controller.slo import LATENCIES, SLO
from proxy.collectors import BuildInfo, FamilyCollector
from proxy.config.model import PoolConfig
from proxy.instruments import Count, CounterFamily, HistogramFamily
from proxy.pool_metrics import (
    CLOSE_REASONS,
    OTHER,
    QUEUED,
    SERVED,
    SHED_REASONS,
    UPSTREAM_OUTCOMES,
    PoolMetrics,
    upstream_outcome,
)

__all__ = ["CLOSE_REASONS", "OTHER", "ROUTES", "SHED_REASONS", "Metrics", "PoolMetrics"]

TTFT_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0,
)  # fmt: skip
TPOT_BOUNDS = (
    0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
DURATION_BOUNDS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
QUEUE_BOUNDS = (
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
TICK_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
WINDOW_BOUNDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
    1.0, 5.0, 60.0,
)  # fmt: skip
BATCH_BOUNDS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)

ROUTES = ("chat.completions", "completions", "embeddings", "models", "passthrough")
"""Routes whose series exist from the start; others appear with their first request."""
NO_POOL: Final = "none"
"""Stands for pool and class of requests that are over before a pool is found for them."""

Family = CounterFamily | HistogramFamily
Dump = Mapping[str, Sequence[Any]]
"""What one process counted, by metric."""

_Kind = tuple[str, str, str, Result, int, str, bool]
"""Pool, route, class, result, code, upstream, whether it was streamed."""

_USUAL_CODE = {
    Result.OK: 200,
    Result.FAILED: 502,
    Result.TIMEOUT: 504,
    Result.REFUSED: 503,
    Result.SHED: 503,
    Result.CANCELLED: 499,
}
_COUNTED_TOGETHER: Final = 64
"""So many requests of one kind, and so many kinds, are put off at most."""
_MAX_ROUTES: Final = 64
_MAX_RULES: Final = 64


class Metrics:
    """One proxy's instruments and their registry. Never global, so tests and reloads can have several."""

    def __init__(self, pools: Sequence[PoolConfig], *, process: bool = True) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._make_families([pool.to_slo() for pool in pools])
        self._shown = self._families
        for index in range(len(self._families)):
            self.registry.register(FamilyCollector(lambda index=index: self._settled(index)))  # type: ignore[misc]
        self.registry.register(BuildInfo())
        if process:
            ProcessCollector(registry=self.registry)
            GCCollector(registry=self.registry)
        self._requests: dict[tuple[str, str, str, Result, int], Count] = {}
        self._routes = set(ROUTES)
        self._pools: dict[str, PoolMetrics] = {}
        self._uncounted: dict[_Kind, list[Observation]] = {}
        self._delay = self.loop_delay.labels()
        self.configure(pools)

    def _make_families(self, slos: Sequence[SLO]) -> None:
        """Declare every counter and histogram, with bucket boundaries exactly at the SLO targets."""
        targets: dict[str, list[float]] = {latency: [] for latency in LATENCIES}
        for slo in slos:
            for latency, target in slo.targets():
                targets[latency].append(target)
        count, hist = CounterFamily, HistogramFamily
        by_class = ("pool", "class")
        self.requests = count(
            "trimtab_requests", "Requests finished, by how they ended and the status sent.",
            ("pool", "route", "class", "outcome", "code"),
        )  # fmt: skip
        self.duration = hist(
            "trimtab_request_duration_seconds", "Arrival to the end of the answer, of requests sent to an upstream.",
            by_class, (*DURATION_BOUNDS, *targets["e2e"]),
        )  # fmt: skip
        self.ttft = hist(
            "trimtab_time_to_first_token_seconds", "Arrival to the first token, of streams.",
            by_class, (*TTFT_BOUNDS, *targets["ttft"]),
        )  # fmt: skip
        self.tpot = hist(
            "trimtab_inter_token_latency_seconds", "Mean time per output token after the first, one value a stream.",
            by_class, (*TPOT_BOUNDS, *targets["tpot"]),
        )  # fmt: skip
        self.queue = hist(
            "trimtab_queue_duration_seconds", "Time waited in the proxy's queue, of requests that were let in.",
            by_class, (*QUEUE_BOUNDS, *targets["queue"]),
        )  # fmt: skip
        self.batch_size = hist(
            "trimtab_batch_size", "Items sent upstream together.", ("pool",), BATCH_BOUNDS
        )  # fmt: skip
        self.window = hist(
            "trimtab_window_wait_seconds",
            "For how long the batching window alone held an upstream call back, of calls that it held.",
            ("pool",), WINDOW_BOUNDS,
        )  # fmt: skip
        self.closed = count("trimtab_batches_closed", "Batches sent, by what ended the wait.", ("pool", "reason"))
        self.shed_total = count("trimtab_shed", "Requests turned away or dropped, by reason.", ("pool", "reason"))
        self.judged = count("trimtab_slo_requests", "Requests measured against a target.", ("pool", "slo"))
        self.missed = count("trimtab_slo_violations", "Requests that missed a target.", ("pool", "slo"))
        self.prompt_tokens = count("trimtab_prompt_tokens", "Prompt tokens sent to upstreams.", ("pool",))
        self.output_tokens = count("trimtab_output_tokens", "Output tokens of finished requests.", ("pool",))
        self.upstream_requests = count(
            "trimtab_upstream_requests",
            "Calls that an upstream was asked, by how they ended; those that went on elsewhere included.",
            ("pool", "upstream", "outcome"),
        )
        self.retries = count("trimtab_retries", "Upstream calls repeated.", ("pool",))
        self.fallbacks = count(
            "trimtab_fallbacks", "Requests that went on to another pool, by why.", ("pool", "to", "cause")
        )
        self.follow_ups = count(
            "trimtab_follow_ups",
            "Requests that named something which an upstream keeps: its keeper is known, away, or nobody knows it.",
            ("pool", "result"),
        )
        self.decisions = count("trimtab_decisions", "Decisions of the controller and operators.", ("pool", "rule"))
        self.reloads = count("trimtab_config_reloads", "Configuration reloads.", ("result",))
        self.loop_delay = hist(
            "trimtab_event_loop_delay_seconds", "How late the event loop woke up for a timer.", (),
            (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
        )  # fmt: skip
        self.tick = hist(
            "trimtab_controller_tick_seconds", "What a look of the controller at its pool took, once a second.",
            ("pool",), TICK_BOUNDS,
        )  # fmt: skip
        self._by_latency = {"e2e": self.duration, "ttft": self.ttft, "tpot": self.tpot, "queue": self.queue}
        self._families: list[Family] = [
            self.requests, self.duration, self.ttft, self.tpot, self.queue, self.batch_size,
            self.window, self.closed, self.shed_total, self.judged, self.missed, self.prompt_tokens,
            self.output_tokens, self.upstream_requests, self.retries, self.fallbacks, self.follow_ups, self.decisions,
            self.reloads, self.loop_delay, self.tick,
        ]  # fmt: skip

    def configure(self, pools: Sequence[PoolConfig]) -> None:
        """Make the series of pools, at start and again after a reload; series that exist go on counting."""
        self.settle()
        for result in ("ok", "failed"):
            self.reloads.labels(result)
        self._request_cell("", "unknown", "", Result.REFUSED, 404)
        for pool in pools:
            slo = pool.to_slo()
            self.slo_changed(pool.name, slo)
            self._pools[pool.name] = PoolMetrics(self, pool.name, pool.classes, slo)
            for klass in pool.classes:
                for route in ROUTES:
                    for result, code in _USUAL_CODE.items():
                        self._request_cell(pool.name, route, klass, result, code)
            if pool.fallback is not None:
                for cause in pool.fallback.on:
                    self.fallbacks.labels(pool.name, pool.fallback.pool, cause)
            for upstream in pool.upstreams:
                for outcome in UPSTREAM_OUTCOMES:
                    self._upstream_cell(self._pools[pool.name], upstream.url, outcome)

    def watch(self, pool: str, slo_of: Callable[[], SLO]) -> None:
        """Judge the requests of `pool` against the promise in force, as `slo_of` returns it."""
        self._pools[pool].slo_of = slo_of

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """Count one request that was answered with `code`. Call exactly once per request."""
        # Requests that went alike are counted together, which costs a third; whoever looks has them counted first,
        # and so has another promise, by which they must not be judged.
        pool = self._pools.get(obs.pool)
        if pool is not None and pool.slo_of() is not pool.slo:
            self.settle()
            pool.judge_anew()
        key = obs.pool, route, obs.klass, obs.result, code, obs.upstream, obs.streamed
        alike = self._uncounted.get(key)
        if alike is None:
            alike = self._uncounted[key] = []
        alike.append(obs)
        if len(alike) >= _COUNTED_TOGETHER or len(self._uncounted) > _COUNTED_TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Count what was put off. Whatever shows numbers does this first."""
        uncounted, self._uncounted = self._uncounted, {}
        for (name, route, klass, result, code, upstream, streamed), alike in uncounted.items():
            cell = self._requests.get((name, route, klass, result, code))
            if cell is None:
                cell = self._request_cell(name, route, klass, result, code)
            cell.value += len(alike)
            pool = self._pools.get(name)
            if pool is None:
                continue
            if upstream and result in SERVED:
                outcome = upstream_outcome(result, code, route)
                cell = pool.upstreams.get((upstream, outcome))
                if cell is None:
                    cell = self._upstream_cell(pool, upstream, outcome)
                cell.value += len(alike)
            pool.count(klass, result, alike, streamed=streamed)

    def traced(self, obs: Observation, trace_id: str) -> None:
        """Let the trace of a counted request stand for the buckets that it fell into."""
        pool = self._pools.get(obs.pool)
        if pool is None:
            return
        klass, wall = obs.klass if obs.klass in pool.classes else OTHER, time.time()
        if obs.result in SERVED:
            pool.duration[klass].exemplify(obs.e2e_s, trace_id, wall)
        if obs.result in QUEUED:
            pool.queue[klass].exemplify(obs.queue_s, trace_id, wall)
        if obs.ttft_s is not None:
            pool.ttft[klass].exemplify(obs.ttft_s, trace_id, wall)

    def shed(self, pool: str, reason: str) -> None:
        """Count one request turned away on arrival or dropped from the queue."""
        known = self._pools.get(pool)
        cell = known.shed.get(reason) if known else None
        if cell is None:
            cell = self.shed_total.labels(pool if known else OTHER, reason)
            if known:
                known.shed[reason] = cell
        cell.value += 1.0

    def batch_dispatched(self, pool: str, size: int, closed_by: str) -> None:
        """Count one upstream call of `size` items and what ended the wait for company."""
        known = self._pools[pool]
        known.batch_size.observe(size)
        cell = known.closed.get(closed_by)
        if cell is None:
            cell = known.closed[closed_by] = self.closed.labels(pool, closed_by)
        cell.value += 1.0

    def window_waited(self, pool: str, seconds: float) -> None:
        """Count one upstream call that the batching window alone held back, and for how long."""
        self._pools[pool].window.observe(seconds)

    def retried(self, pool: str) -> None:
        """Count one repeated upstream call."""
        self._pools[pool].retries.value += 1.0

    def asked_in_vain(self, pool: str, upstream: str, status: int) -> None:
        """Count one upstream call that failed and was made again elsewhere."""
        known = self._pools[pool]
        outcome = upstream_outcome(Result.FAILED, status, "")
        cell = known.upstreams.get((upstream, outcome))
        if cell is None:
            cell = self._upstream_cell(known, upstream, outcome)
        cell.value += 1.0

    def fell_back(self, pool: str, to: str, cause: str) -> None:
        """Count one request that went on to another pool."""
        known = self._pools
        self.fallbacks.labels(pool if pool in known else OTHER, to if to in known else OTHER, cause).value += 1.0

    def followed_up(self, pool: str, result: str) -> None:
        """Count one request that referred to something which an upstream keeps."""
        self._pools[pool].follow_ups[result].value += 1.0

    def decided(self, pool: str, rule: str) -> None:
        """Count one decision of the controller or of an operator."""
        known = self._pools[pool]
        cell = known.rules.get(rule)
        if cell is None:
            name = rule if len(known.rules) < _MAX_RULES else OTHER
            cell = known.rules[rule] = self.decisions.labels(pool, name)
        cell.value += 1.0

    def reloaded(self, *, ok: bool) -> None:
        """Count one reload of the configuration."""
        self.reloads.labels("ok" if ok else "failed").value += 1.0

    def ticked(self, pool: str, seconds: float) -> None:
        """Note what a look of the controller at its pool took."""
        self._pools[pool].tick.observe(seconds)

    def loop_delayed(self, seconds: float) -> None:
        """Note how late the event loop was for a timer."""
        self._delay.observe(max(0.0, seconds))

    def slo_changed(self, pool: str, slo: SLO) -> None:
        """Put a bucket boundary at every target of `slo`, where there is room for one."""
        self.settle()
        for latency, target in slo.targets():
            self._by_latency[latency].add_bound(target)

    def render(self, accept: str = "", others: Iterable[Dump] = ()) -> tuple[bytes, str]:
        """Return the exposition that an Accept header asks for, and its content type.

        Counters and histograms are the sums of these and of `others`, which `dump` returned elsewhere.
        """
        encoder, content_type = choose_encoder(accept)
        self.settle()
        found = [*others]
        if found:
            self._shown = total([self.dump(), *found], self._families)
        try:
            return encoder(self.registry), content_type
        finally:
            self._shown = self._families

    def dump(self) -> Dump:
        """Return every counter and histogram, JSON-ready."""
        self.settle()
        return {family.name: family.dump() for family in self._families}

    def sum(self, dumps: Iterable[Dump]) -> Dump:
        """Return what several processes counted, as one."""
        return {family.name: family.dump() for family in total(dumps, self._families)}

    def _settled(self, index: int) -> Family:
        self.settle()
        return self._shown[index]

    def _request_cell(self, pool: str, route: str, klass: str, result: Result, code: int) -> Count:
        """Find the series, folding values that nobody configured into `other`."""
        known = self._pools.get(pool)
        if route not in self._routes and len(self._routes) < _MAX_ROUTES:
            self._routes.add(route)
        cell = self.requests.labels(
            pool if known else OTHER if pool else NO_POOL,
            route if route in self._routes else OTHER,
            klass if known and klass in known.classes else OTHER if pool else NO_POOL,
            result.value,
            str(code) if 100 <= code <= 599 else OTHER,
        )
        if len(self._requests) < 10_000:
            self._requests[pool, route, klass, result, code] = cell
        return cell

    def _upstream_cell(self, pool: PoolMetrics, upstream: str, outcome: str) -> Count:
        cell = pool.upstreams[upstream, outcome] = self.upstream_requests.labels(pool.name, upstream, outcome)
        return cell


def total(dumps: Iterable[Dump], families: Iterable[Family]) -> list[Family]:
    """Return families like these that hold the sums of `dumps`."""
    sums = [family.blank() for family in families]
    for dump in dumps:
        for family in sums:
            family.absorb(dump.get(family.name, ()))
    return sums
