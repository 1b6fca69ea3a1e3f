"""How good the predictors of answer lengths are, and what they decide, read when somebody scrapes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from proxy.pool_view import PoolView

__all__ = ["STEPS", "USES", "PredictorMetrics"]

_LOG = logging.getLogger("trimtab.metrics")

STEPS = ("learned", "history", "usual", "none", "off")
"""What a decision may go by; none: nothing has proven itself yet, off: not used for that."""
USES = {"order": "order_by", "admit": "admit_by"}

_GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "coverage": ("Share of the newest answers within their predicted ninth decile; 0.9 is right.", ("pool",)),
    "pinball_ratio": ("Quantile loss over that of the usual length; below 1 is better.", ("pool", "q")),
    "tau": ("Rank correlation (Kendall) of predicted and real lengths, newest 500 answers.", ("pool",)),
    "bias": ("Mean log of real over predicted length.", ("pool",)),
    "step_coverage": ("The same share for each step of the ladder.", ("pool", "step")),
    "step_pinball_ratio": ("The same loss ratio for each step of the ladder.", ("pool", "step", "q")),
    "in_use": ("1 for the step that a decision goes by.", ("pool", "use", "step")),
    "history_keys": ("Prompts and templates remembered.", ("pool",)),
    "model_age_seconds": ("Since the learned model was taken over; absent without one.", ("pool",)),
    "training": ("1 while a training is under way.", ("pool",)),
}

_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "source": ("Predictions, by what carried them.", ("pool", "source")),
    "trainings": ("Trainings begun.", ("pool",)),
    "drifts": ("Times that lengths had changed for good.", ("pool",)),
    "failures": ("Predictions or outcomes that failed inside and were answered by a weaker step.", ("pool",)),
}


class PredictorMetrics(Collector):
    """Reads every pool's report once per scrape; pools that predict nothing have no series."""

    def __init__(self, pools: Callable[[], Iterable[PoolView]]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield every series of every pool."""
        gauges = {
            name: GaugeMetricFamily(f"trimtab_predictor_{name}", text, labels=labels)
            for name, (text, labels) in _GAUGES.items()
        }
        counters = {
            name: CounterMetricFamily(f"trimtab_predictor_{name}", text, labels=labels)
            for name, (text, labels) in _COUNTERS.items()
        }
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {**gauges, **counters}

        def put(name: str, value: float | None, *labels: str) -> None:
            if value is not None:
                families[name].add_metric(labels, float(value))

        for pool in self._pools():
            try:
                report = pool.stats().get("predictor")
                if report and report["mode"] != "off":
                    _pool(put, pool.name, report)
            except Exception:
                # At three in the morning part of the truth is better than an empty answer.
                _LOG.exception("the predictor metrics of pool %s are incomplete", pool.name)
        yield from families.values()


def _pool(put: Callable[..., None], pool: str, report: Mapping[str, Any]) -> None:
    live = report["all"]
    put("coverage", live["coverage90"], pool)
    put("tau", live["tau"], pool)
    put("bias", live["bias"], pool)
    for q in ("50", "90"):
        put("pinball_ratio", live[f"pinball{q}_ratio"], pool, f"0.{q[0]}")
    for step, standing in report["steps"].items():
        put("step_coverage", standing["coverage"], pool, step)
        for q in ("50", "90"):
            put("step_pinball_ratio", standing[f"pinball{q}_ratio"], pool, step, f"0.{q[0]}")
    for use, key in USES.items():
        for step in STEPS:
            put("in_use", report[key] == step, pool, use, step)
    put("history_keys", report["history_keys"], pool)
    put("model_age_seconds", report["model_age_s"], pool)
    for source, count in report["sources"].items():
        put("source", count, pool, source)
    put("drifts", report["drifts"], pool)
    put("failures", report["failures"], pool)
    trainer = report["trainer"]
    if trainer is not None:
        put("training", trainer["training"], pool)
        put("trainings", trainer["trainings"], pool)
