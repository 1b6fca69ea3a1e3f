"""What the predictors of several workers say together: sums, weighted means, and counts that never go back."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from controller.observation import Observation, Result
from controller.shared import Leader
from proxy.config.model import Config
from proxy.config.rules import controller_for
from proxy.dispatch.lengths import Lengths
from proxy.observe.predictor_gauges import PredictorMetrics
from proxy.request import Ticket
from proxy.wire.base import Call, Route
from proxy.workers.pools import LedPool
from proxy.workers.predictors import Predictors

CONFIG = Config.model_validate({"upstreams": ["http://a:1"], "policy": "sjf"}).pools[0]
QUEUE = {"requests": 0, "items": 0, "tokens": 0.0, "by_class": {}, "oldest_age_s": 0.0, "ages_s": {}}


def said(n: int, model: str = "m") -> dict[str, Any]:
    """Return what a worker reports after `n` requests, as it comes out of the line between processes."""
    made = Lengths(CONFIG, float)
    for index in range(n):
        ticket = Ticket("id", 0.0)
        ticket.call = Call(Route("chat.completions"), b"", model, text=f"prompt {index % 2}")
        made.foresee(ticket, ticket.call)
        ticket.finish_reason = "stop"
        made.finished(ticket, Observation("p", 0.0, 1.0, Result.OK, 0, output_tokens=400 if index % 2 else 4))
    made.tick()
    report: dict[str, Any] = json.loads(json.dumps(made.report()))
    return report


def led(*reports: dict[str, Any]) -> LedPool:
    pool = LedPool(CONFIG, controller_for(CONFIG, 0.0, Leader), lambda pool: None)
    for worker, report in enumerate(reports):
        stats = {"queue": QUEUE, "inflight": 0, "inflight_calls": 0, "leases": 0, "draining": False,
                 "upstreams": [], "predictor": report}  # fmt: skip
        pool.reported(worker, {"load": {}, "own_load": {}, "stats": stats, "arrivals": 0})
    return pool


def predicted(pool: LedPool) -> int:
    return sum(pool.stats()["predictor"]["sources"].values())


def test_workers_that_predict_nothing_say_so_together() -> None:
    assert led({"mode": "off"}, {"mode": "off"}).stats()["predictor"] == {"mode": "off"}
    assert led().stats()["predictor"] == {"mode": "off"}


def test_one_report_comes_through_as_it_is() -> None:
    report = said(100)
    assert led(report).stats()["predictor"] == report


def test_counts_add_up_and_figures_are_weighted_by_the_outcomes_behind_them() -> None:
    much, little = said(300, "a"), said(100, "b")
    joined = led(much, little).stats()["predictor"]
    assert joined["all"]["n"] == 400
    wanted = (300 * much["all"]["coverage90"] + 100 * little["all"]["coverage90"]) / 400
    assert abs(joined["all"]["coverage90"] - wanted) < 1e-12
    assert joined["steps"]["history"]["n"] == much["steps"]["history"]["n"] + little["steps"]["history"]["n"]
    assert joined["history_keys"] == much["history_keys"] + little["history_keys"]
    assert set(joined["models"]) == {"a", "b"}


def test_a_figure_that_only_one_knows_is_that_ones() -> None:
    joined = led(said(300), said(3)).stats()["predictor"]
    assert joined["all"]["tau"] == said(300)["all"]["tau"]
    assert led(said(3), said(3)).stats()["predictor"]["all"]["tau"] is None


def test_what_most_go_by_is_shown_and_the_weaker_where_they_are_split() -> None:
    warm, cold = said(400), said(0)
    assert (warm["order_by"], cold["order_by"]) == ("history", "none")
    assert led(warm, warm, cold).stats()["predictor"]["order_by"] == "history"
    assert led(warm, cold).stats()["predictor"]["order_by"] == "none"


def test_what_a_dead_worker_counted_stays() -> None:
    pool = led(said(50), said(20))
    assert predicted(pool) == 70
    pool.lost(0)
    assert predicted(pool) == 70


def test_trainings_add_up_over_the_living_and_the_dead() -> None:
    trainer = {"rows": 10, "new_rows": 1, "trainings": 2, "training": False, "last_result": "new model"}
    busy = said(0) | {"trainer": trainer | {"training": True}}
    predictors = Predictors()
    predictors.lost(said(0) | {"trainer": trainer})
    joined = predictors.joined([said(0) | {"trainer": trainer}, busy])["trainer"]
    assert (joined["trainings"], joined["rows"], joined["training"]) == (6, 20, True)


def test_the_joined_report_makes_the_same_series_as_a_single_one() -> None:
    def names(pool: LedPool) -> set[str]:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(PredictorMetrics(lambda: [pool]))
        return {line.rsplit(" ", 1)[0] for line in generate_latest(registry).decode().splitlines()}

    single = names(led(said(400)))
    assert 'trimtab_predictor_in_use{pool="default",step="history",use="order"}' in single
    assert names(led(said(400), said(400))) == single
