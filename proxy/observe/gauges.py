"""What is true right now, read from the pools at the moment somebody scrapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from controller.slo import LATENCIES
from proxy.pool_view import PoolView

__all__ = ["STATES", "VERDICTS", "PoolGauges"]

STATES = ("up", "overloaded", "ejected", "down", "draining", "drained")
VERDICTS = ("met", "missed", "unproven")
_LOG = logging.getLogger("trimtab.metrics")
SETPOINTS = ("max_batch_size", "window_ms")

_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "queue_size": ("Requests waiting.", ("pool", "class")),
    "queue_oldest_seconds": ("How long the oldest one has waited.", ("pool", "class")),
    "queue_tokens": ("Predicted tokens of work waiting.", ("pool",)),
    "inflight": ("Items (merge) or sequences (gate) at the upstreams.", ("pool",)),
    "inflight_calls": ("Upstream calls in flight.", ("pool",)),
    "leases": ("Slots at upstreams that are taken and not yet given back.", ("pool",)),
    "saturation_ratio": ("Share in use of what the setpoints allow in flight.", ("pool",)),
    "setpoint_max_batch_size": ("The batch size setpoint: largest batch, or sequences allowed in flight.", ("pool",)),
    "setpoint_window_seconds": ("The batching window setpoint.", ("pool",)),
    "setpoint_generation": ("Counts changes of the setpoints.", ("pool",)),
    "setpoint_pinned": ("1 while an operator holds the setpoint.", ("pool", "setpoint")),
    "setpoint_max_batch_size_bound": ("How far the batch size setpoint may go.", ("pool", "bound")),
    "law_info": ("Always 1; the law that turns the setpoints.", ("pool", "law")),
    "slo_target_seconds": ("The latency promised.", ("pool", "slo")),
    "slo_objective_ratio": ("The share of requests it is promised for.", ("pool",)),
    "slo_verdict": ("1 for what the evidence of the window says about a target.", ("pool", "slo", "verdict")),
    "latency_quantile_seconds": ("Live quantile over the controller's window.", ("pool", "latency", "q")),
    "latency_quantile_lower_seconds": ("Lower end of its 95% interval.", ("pool", "latency", "q")),
    "latency_quantile_upper_seconds": ("Upper end of its 95% interval.", ("pool", "latency", "q")),
    "latency_samples": ("Requests behind the live quantiles.", ("pool", "latency")),
    "slo_error_budget_remaining_ratio": (
        "Part of the last 24 hours' allowed late requests that is left; negative when overspent.",
        ("pool", "class"),
    ),
    "slo_error_budget_burn_ratio": (
        "Late share over the allowed share; 1 uses up exactly the budget.",
        ("pool", "class", "window"),
    ),
    "slo_error_budget_covered_seconds": ("For how long the budget has been counted, at most a day.", ("pool",)),
    "express_share_ratio": ("Most that express classes get while others wait.", ("pool",)),
    "upstream_healthy": ("1 while it may be asked.", ("pool", "upstream")),
    "upstream_state": ("1 for the state it is in.", ("pool", "upstream", "state")),
    "upstream_inflight": ("Calls under way there.", ("pool", "upstream")),
    "upstream_failure_ratio": ("Moving share of failures and overloads.", ("pool", "upstream")),
    "upstream_connections": ("Connections kept, by use.", ("pool", "upstream", "state")),
    "upstream_share": ("Its weight, or what it has of it so far while it is being eased in.", ("pool", "upstream")),
    "upstream_reported_running": ("Sequences it says it is working on.", ("pool", "upstream")),
    "upstream_reported_waiting": ("Requests it says wait in its own queue.", ("pool", "upstream")),
    "upstream_reported_kv_usage_ratio": ("Share of its KV cache it says is in use.", ("pool", "upstream")),
    "upstream_reported_age_seconds": ("How old what it says is.", ("pool", "upstream")),
    "upstream_reported_stale": ("1 while that is too old to be taken for the present.", ("pool", "upstream")),
}


class PoolGauges(Collector):
    """Reads every pool once per scrape. `now` is the clock of the pools; `pools` may change between scrapes."""

    def __init__(self, pools: Callable[[], Iterable[PoolView]], now: Callable[[], float]) -> None:
        self._pools = pools
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield every gauge of every pool."""
        families = {
            name: GaugeMetricFamily(f"trimtab_{name}", text, labels=labels)
            for name, (text, labels) in _GAUGES.items()
        }

        def put(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                families[name].add_metric(labels, float(value))

        now = self._now()
        for pool in self._pools():
            try:
                _knobs(put, pool)
                _promise(put, pool)
                _load(put, pool, now)
                _live(put, pool.name, pool.controller.snapshot(now))
            except Exception:
                # At three in the morning part of the truth is better than an empty answer.
                _LOG.exception("the gauges of pool %s are incomplete", pool.name)
        yield from families.values()


_Put = Callable[..., None]


def _knobs(put: _Put, pool: PoolView) -> None:
    controller, name = pool.controller, pool.name
    setpoints, bounds = controller.setpoints, pool.config.setpoints.max_batch_size
    put("setpoint_max_batch_size", setpoints.max_batch_size, name)
    put("setpoint_window_seconds", setpoints.window_ms / 1000.0, name)
    put("setpoint_generation", setpoints.generation, name)
    put("setpoint_max_batch_size_bound", bounds.min, name, "min")
    put("setpoint_max_batch_size_bound", bounds.max, name, "max")
    for setpoint in SETPOINTS:
        put("setpoint_pinned", setpoint in controller.pins, name, setpoint)
    put("law_info", 1, name, controller.law_name)


def _promise(put: _Put, pool: PoolView) -> None:
    slo = pool.controller.slo
    put("slo_objective_ratio", slo.quantile, pool.name)
    for latency, target in slo.targets():
        put("slo_target_seconds", target, pool.name, latency)


def _load(put: _Put, pool: PoolView, now: float) -> None:
    name, load, stats = pool.name, pool.load(now), pool.stats()
    queue = stats.get("queue", {})
    by_class, ages = queue.get("by_class", {}), queue.get("ages_s", {})
    for klass in pool.config.classes:
        put("queue_size", by_class.get(klass, 0), name, klass)
        put("queue_oldest_seconds", ages.get(klass, 0.0), name, klass)
    put("queue_tokens", load.queued_tokens, name)
    put("inflight", load.inflight, name)
    put("inflight_calls", load.inflight_calls, name)
    put("leases", stats.get("leases", 0), name)
    calls = max(1, load.slots) if pool.controller.mode == "merge" else 1
    put("saturation_ratio", load.inflight / (pool.controller.setpoints.max_batch_size * calls), name)
    for upstream in stats.get("upstreams", ()):
        _upstream(put, name, upstream)


def _upstream(put: _Put, pool: str, stats: Mapping[str, Any]) -> None:
    url, state = stats["url"], stats.get("state", "up")
    put("upstream_healthy", state in ("up", "overloaded"), pool, url)
    for known in STATES:
        put("upstream_state", state == known, pool, url, known)
    put("upstream_inflight", stats.get("inflight", 0), pool, url)
    put("upstream_failure_ratio", stats.get("failure_rate", 0.0), pool, url)
    idle = stats.get("connections_idle", 0)
    put("upstream_connections", idle, pool, url, "idle")
    put("upstream_connections", stats.get("connections_open", 0) - idle, pool, url, "busy")
    put("upstream_share", stats.get("share"), pool, url)
    reported = stats.get("reported")
    if reported is not None:
        put("upstream_reported_running", reported["running"], pool, url)
        put("upstream_reported_waiting", reported["waiting"], pool, url)
        put("upstream_reported_kv_usage_ratio", reported["kv_usage"], pool, url)
        put("upstream_reported_age_seconds", reported["age_s"], pool, url)
        put("upstream_reported_stale", reported["stale"], pool, url)


def _live(put: _Put, pool: str, snapshot: Mapping[str, Any]) -> None:
    for latency, row in snapshot.get("quantiles", {}).items():
        put("latency_samples", row.get("n", 0), pool, latency)
        for label, key in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99")):
            found = row.get(key)
            if found:
                put("latency_quantile_seconds", _seconds(found["value_ms"]), pool, latency, label)
                put("latency_quantile_lower_seconds", _seconds(found["low_ms"]), pool, latency, label)
                put("latency_quantile_upper_seconds", _seconds(found["high_ms"]), pool, latency, label)
    _budgets(put, pool, snapshot)
    attainment = snapshot.get("attainment", {})
    for latency in LATENCIES:
        verdict = attainment.get(latency, {}).get("verdict")
        if verdict is not None:
            for known in VERDICTS:
                put("slo_verdict", verdict == known, pool, latency, known)


def _budgets(put: _Put, pool: str, snapshot: Mapping[str, Any]) -> None:
    put("slo_error_budget_covered_seconds", snapshot["error_budget"]["covered_s"], pool)
    put("express_share_ratio", snapshot["express"]["share"], pool)
    for klass, shown in snapshot["classes"].items():
        spent = shown["error_budget"]
        put("slo_error_budget_remaining_ratio", spent["remaining"], pool, klass)
        for window, row in spent["windows"].items():
            put("slo_error_budget_burn_ratio", row["burn_rate"], pool, klass, window)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1000.0
