"""A controller's whole state, as the admin API shows it."""

from __future__ import annotations

from typing import Any

from controller.dispatch.dispatcher import Dispatcher
from controller.measure.latency import attainment
from controller.observation import Result
from controller.tune.knobs import slo_dict
from controller.tune.tuner import Tuner

__all__ = ["snapshot"]


def snapshot(dispatcher: Dispatcher, tuner: Tuner, now: float) -> dict[str, Any]:
    """Return the whole state, JSON-ready: live quantiles with n and interval, counts, attainment, law, model."""
    record, trials, chosen, promises = tuner.record, tuner.trials, tuner.chosen, dispatcher.promises
    slo, bounds, window = promises.pool, tuner.pins.bounds, tuner.record.window
    counts = window.counts(now)
    return {
        "pool": tuner.pool,
        "mode": dispatcher.mode,
        "law": {
            "name": chosen.name,
            "options": dict(chosen.options),
            "state": chosen.law.state(),
            "admission": chosen.terms.admission,
            "guard": tuner.guard.state(),
        },
        "shadow": None if trials.shadow is None else trials.shadow.name,
        "experiment": None if trials.experiment is None else trials.experiment.as_dict(),
        "frozen": tuner.frozen,
        "slo": slo_dict(slo),
        "classes": {
            klass: {"slo": slo_dict(promises.of(klass)), "error_budget": spent}
            for klass, spent in record.budgets(promises, now).items()
        },
        "error_budget": record.whole_budget(promises, now),
        "express": dispatcher.express.as_dict(),
        "setpoints": dispatcher.setpoints.as_dict(),
        "bounds": {
            "max_batch_size": [bounds.min_batch_size, bounds.max_batch_size],
            "window_ms": [bounds.min_window_ms, bounds.max_window_ms],
        },
        "pins": tuner.pins.held,
        "window_s": window.window_s,
        "quantiles": window.quantiles(now),
        "counts": {result.value: counts[result.value] for result in Result} | {"late": counts["late"]},
        "attainment": attainment(slo, counts),
        "arrival_rate": dispatcher.arrival_rate,
        "generation_samples": len(tuner.samples.current),
        "model": dispatcher.upstream.as_dict(),
        "admission": {
            "room": dispatcher.admission.room.as_dict(),
            "record": dispatcher.admission.record.as_dict(),
        },
    }
