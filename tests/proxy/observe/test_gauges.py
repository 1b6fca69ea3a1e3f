"""What is scraped is what the pools say at that moment."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from controller.load import Load
from controller.observation import Observation, Result
from proxy.observe.gauges import PoolGauges
from proxy.observe.metrics import Metrics
from tests.proxy.admin.operator import FakeOperator


def scrape(operator: FakeOperator) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    operator.metrics = Metrics(operator.config.pools, process=False)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PoolGauges(lambda: operator.pools.values(), operator.clock.now))
    operator.metrics.registry = registry
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(operator.metrics.render()[0].decode())
        for sample in family.samples
    }


def value(operator: FakeOperator, name: str, **labels: str) -> float | None:
    return scrape(operator).get((f"trimtab_{name}", frozenset(labels.items())))


def test_setpoints_pins_and_law() -> None:
    operator = FakeOperator()
    controller = operator.pools["chat"].controller
    controller.pin({"max_batch_size": 3}, 1000.0, "admin:test")
    assert value(operator, "setpoint_max_batch_size", pool="chat") == 3
    assert value(operator, "setpoint_window_seconds", pool="chat") == 0.005
    assert value(operator, "setpoint_pinned", pool="chat", setpoint="max_batch_size") == 1
    assert value(operator, "setpoint_pinned", pool="chat", setpoint="window_ms") == 0
    assert value(operator, "setpoint_max_batch_size_bound", pool="chat", bound="max") == 64
    assert value(operator, "law_info", pool="chat", law=controller.law_name) == 1


def test_only_what_is_promised_has_a_target() -> None:
    operator = FakeOperator()
    assert value(operator, "slo_target_seconds", pool="chat", slo="ttft") == 0.5
    assert value(operator, "slo_target_seconds", pool="chat", slo="tpot") is None
    assert value(operator, "slo_target_seconds", pool="embed", slo="ttft") is None
    assert value(operator, "slo_objective_ratio", pool="chat") == 0.99


def test_load_and_saturation() -> None:
    operator = FakeOperator()
    operator.pools["chat"].current = Load(queued=5, queued_tokens=700.0, inflight=4, inflight_calls=4)
    operator.pools["chat"].state = {
        "queue": {"by_class": {"batch": 5}, "oldest_age_s": 1.5, "ages_s": {"batch": 1.5}},
        "leases": 4,
        "upstreams": [{"url": "http://a:1", "state": "ejected", "inflight": 4, "failure_rate": 0.5,
                       "connections_open": 6, "connections_idle": 2}],
    }  # fmt: skip
    assert value(operator, "queue_size", pool="chat", **{"class": "batch"}) == 5
    assert value(operator, "queue_size", pool="chat", **{"class": "default"}) == 0
    assert value(operator, "queue_oldest_seconds", pool="chat", **{"class": "batch"}) == 1.5
    assert value(operator, "queue_oldest_seconds", pool="chat", **{"class": "default"}) == 0.0
    assert value(operator, "leases", pool="chat") == 4
    assert value(operator, "inflight", pool="chat") == 4
    assert value(operator, "saturation_ratio", pool="chat") == 0.5
    assert value(operator, "upstream_healthy", pool="chat", upstream="http://a:1") == 0
    assert value(operator, "upstream_state", pool="chat", upstream="http://a:1", state="ejected") == 1
    assert value(operator, "upstream_state", pool="chat", upstream="http://a:1", state="up") == 0
    assert value(operator, "upstream_connections", pool="chat", upstream="http://a:1", state="busy") == 4


def test_live_quantiles_come_with_their_uncertainty() -> None:
    operator = FakeOperator()
    for index in range(100):
        operator.pools["chat"].controller.observe(
            Observation("chat", 990.0, 990.1 + index / 1000, Result.OK, 0, dispatched=990.01, first_byte=990.05,
                        last_byte=990.1, streamed=True, output_tokens=5)
        )  # fmt: skip
    assert value(operator, "latency_samples", pool="chat", latency="e2e") == 100
    middle = value(operator, "latency_quantile_seconds", pool="chat", latency="e2e", q="0.5")
    low = value(operator, "latency_quantile_lower_seconds", pool="chat", latency="e2e", q="0.5")
    high = value(operator, "latency_quantile_upper_seconds", pool="chat", latency="e2e", q="0.5")
    assert low is not None
    assert middle is not None
    assert high is not None
    assert 0.1 <= low < middle < high <= 0.2
    assert value(operator, "latency_quantile_upper_seconds", pool="chat", latency="e2e", q="0.99") is None
    assert value(operator, "slo_verdict", pool="chat", slo="ttft", verdict="unproven") == 1


def test_a_pool_whose_state_cannot_be_read_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = FakeOperator()

    def broken() -> None:
        raise RuntimeError("no state")

    monkeypatch.setattr(operator.pools["chat"], "stats", broken)
    seen = scrape(operator)
    assert ("trimtab_inflight", frozenset({("pool", "embed")})) in seen
    assert ("trimtab_setpoint_max_batch_size", frozenset({("pool", "chat")})) in seen
    assert ("trimtab_inflight", frozenset({("pool", "chat")})) not in seen


def test_the_error_budget_is_shown_by_class_and_window() -> None:
    operator = FakeOperator()
    for index in range(200):
        seconds = 20.0 if index < 4 else 1.0
        operator.pools["chat"].controller.observe(
            Observation("chat", 990.0, 990.0 + seconds, Result.OK, 0, dispatched=990.0, klass="batch")
        )
    burn = value(operator, "slo_error_budget_burn_ratio", pool="chat", window="1h", **{"class": "batch"})
    assert burn == pytest.approx(2.0)
    left = value(operator, "slo_error_budget_remaining_ratio", pool="chat", **{"class": "batch"})
    assert left == pytest.approx(-1.0)
    assert value(operator, "slo_error_budget_remaining_ratio", pool="embed", **{"class": "batch"}) is None
    assert value(operator, "express_share_ratio", pool="chat") == 0.5
