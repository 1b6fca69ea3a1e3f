"""The predictors' series: there for pools that predict, bounded, and true."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from controller.observation import Observation, Result
from proxy.config.model import Config
from proxy.dispatch.lengths import Lengths
from proxy.observe.predictor_gauges import STEPS, PredictorMetrics
from proxy.request import Ticket
from proxy.wire.base import Call, Route
from tests.proxy.admin.operator import FakeOperator


def scrape(operator: FakeOperator) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(PredictorMetrics(operator.pools.values))
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def lengths(n: int, models: int = 1) -> Lengths:
    config = Config.model_validate({"upstreams": ["http://a:1"], "policy": "sjf"}).pools[0]
    made = Lengths(config, float)
    for index in range(n):
        ticket = Ticket("id", 0.0)
        ticket.call = Call(Route("chat.completions"), b"", f"m{index % models}", text=f"prompt {index % 2}")
        made.foresee(ticket, ticket.call)
        ticket.finish_reason = "stop"
        tokens = 400 if index % 2 else 4
        made.finished(ticket, Observation("p", 0.0, 1.0, Result.OK, 0, output_tokens=tokens))
    made.tick()
    return made


def series(report: dict[str, Any]) -> tuple[dict[tuple[str, frozenset[tuple[str, str]]], float], FakeOperator]:
    operator = FakeOperator()
    operator.pools["chat"].state = {"predictor": report}
    return scrape(operator), operator


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float | None:
    return found.get((f"trimtab_predictor_{name}", frozenset({"pool": "chat", **labels}.items())))


def test_a_pool_that_predicts_nothing_has_no_series() -> None:
    found, _ = series({"mode": "off"})
    assert found == {}


def test_the_series_say_how_good_it_is_and_what_decides() -> None:
    found, _ = series(lengths(400).report())
    assert value(found, "in_use", use="order", step="history") == 1
    assert value(found, "in_use", use="order", step="learned") == 0
    ratio = value(found, "step_pinball_ratio", step="history", q="0.5")
    assert ratio is not None
    assert ratio < 0.5
    tau = value(found, "tau")
    assert tau is not None
    assert tau > 0.5
    coverage = value(found, "coverage")
    assert coverage is not None
    assert 0.5 < coverage <= 1.0
    counted = sum(v for (name, _), v in found.items() if name == "trimtab_predictor_source_total")
    assert counted == 400


def test_no_figure_is_claimed_before_there_is_one() -> None:
    found, _ = series(lengths(3).report())
    assert value(found, "coverage") is None
    assert value(found, "tau") is None
    assert value(found, "in_use", use="admit", step="none") == 1


def test_the_number_of_series_does_not_grow_with_models_or_prompts() -> None:
    few, _ = series(lengths(400).report())
    many, _ = series(lengths(400, models=100).report())
    assert {name for name, _ in few} == {name for name, _ in many}
    assert abs(len(many) - len(few)) <= len(STEPS)
