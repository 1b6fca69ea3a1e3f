"""Everything the data plane counts, under names that begin with `trimtab_`.

The core calls the methods of `Metrics`; none of them looks a label up after the first time. Gauges are not kept
here: `proxy.observe.gauges` reads them from the pools when somebody scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from controller.observation import Observation, Result
from controller.slo import SLO
from proxy.config.model import PoolConfig
from proxy.observe.collectors import BuildInfo, FamilyCollector
from proxy.observe.families import Families, Family
from proxy.observe.instruments import Count
from proxy.observe.pool_metrics import (
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

ROUTES = ("chat.completions", "completions", "embeddings", "models", "passthrough")
"""Routes whose series exist from the start; others appear with their first request."""
NO_POOL: Final = "none"
"""Stands for pool and class of requests that are over before a pool is found for them."""

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
        families = self.families = Families([pool.to_slo() for pool in pools])
        self._shown = families.all
        for index in range(len(self.families.all)):
            self.registry.register(FamilyCollector(lambda index=index: self._settled(index)))  # type: ignore[misc]
        self.registry.register(BuildInfo())
        if process:
            ProcessCollector(registry=self.registry)
            GCCollector(registry=self.registry)
        self._requests: dict[tuple[str, str, str, Result, int], Count] = {}
        self._routes = set(ROUTES)
        self._pools: dict[str, PoolMetrics] = {}
        self._uncounted: dict[_Kind, list[Observation]] = {}
        self._delay = self.families.loop_delay.labels()
        self.configure(pools)

    def configure(self, pools: Sequence[PoolConfig]) -> None:
        """Make the series of pools, at start and again after a reload; series that exist go on counting."""
        self.settle()
        for result in ("ok", "failed"):
            self.families.reloads.labels(result)
        self._request_cell("", "unknown", "", Result.REFUSED, 404)
        for pool in pools:
            slo = pool.to_slo()
            self.slo_changed(pool.name, slo)
            self._pools[pool.name] = PoolMetrics(self.families, pool.name, pool.classes, slo)
            for klass in pool.classes:
                for route in ROUTES:
                    for result, code in _USUAL_CODE.items():
                        self._request_cell(pool.name, route, klass, result, code)
            if pool.fallback is not None:
                for cause in pool.fallback.on:
                    self.families.fallbacks.labels(pool.name, pool.fallback.pool, cause)
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
            cell = self.families.shed_total.labels(pool if known else OTHER, reason)
            if known:
                known.shed[reason] = cell
        cell.value += 1.0

    def batch_dispatched(self, pool: str, size: int, closed_by: str) -> None:
        """Count one upstream call of `size` items and what ended the wait for company."""
        known = self._pools[pool]
        known.batch_size.observe(size)
        cell = known.closed.get(closed_by)
        if cell is None:
            cell = known.closed[closed_by] = self.families.closed.labels(pool, closed_by)
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
        self.families.fallbacks.labels(
            pool if pool in known else OTHER, to if to in known else OTHER, cause
        ).value += 1.0

    def followed_up(self, pool: str, result: str) -> None:
        """Count one request that referred to something which an upstream keeps."""
        self._pools[pool].follow_ups[result].value += 1.0

    def decided(self, pool: str, rule: str) -> None:
        """Count one decision of the controller or of an operator."""
        known = self._pools[pool]
        cell = known.rules.get(rule)
        if cell is None:
            name = rule if len(known.rules) < _MAX_RULES else OTHER
            cell = known.rules[rule] = self.families.decisions.labels(pool, name)
        cell.value += 1.0

    def reloaded(self, *, ok: bool) -> None:
        """Count one reload of the configuration."""
        self.families.reloads.labels("ok" if ok else "failed").value += 1.0

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
            self.families.by_latency[latency].add_bound(target)

    def render(self, accept: str = "", others: Iterable[Dump] = ()) -> tuple[bytes, str]:
        """Return the exposition that an Accept header asks for, and its content type.

        Counters and histograms are the sums of these and of `others`, which `dump` returned elsewhere.
        """
        encoder, content_type = choose_encoder(accept)
        self.settle()
        found = [*others]
        if found:
            self._shown = total([self.dump(), *found], self.families.all)
        try:
            return encoder(self.registry), content_type
        finally:
            self._shown = self.families.all

    def dump(self) -> Dump:
        """Return every counter and histogram, JSON-ready."""
        self.settle()
        return {family.name: family.dump() for family in self.families.all}

    def sum(self, dumps: Iterable[Dump]) -> Dump:
        """Return what several processes counted, as one."""
        return {family.name: family.dump() for family in total(dumps, self.families.all)}

    def _settled(self, index: int) -> Family:
        self.settle()
        return self._shown[index]

    def _request_cell(self, pool: str, route: str, klass: str, result: Result, code: int) -> Count:
        """Find the series, folding values that nobody configured into `other`."""
        known = self._pools.get(pool)
        if route not in self._routes and len(self._routes) < _MAX_ROUTES:
            self._routes.add(route)
        cell = self.families.requests.labels(
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
        cell = pool.upstreams[upstream, outcome] = self.families.upstream_requests.labels(
            pool.name, upstream, outcome
        )
        return cell


def total(dumps: Iterable[Dump], families: Iterable[Family]) -> list[Family]:
    """Return families like these that hold the sums of `dumps`."""
    sums = [family.blank() for family in families]
    for dump in dumps:
        for family in sums:
            family.absorb(dump.get(family.name, ()))
    return sums
