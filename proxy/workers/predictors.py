"""The length predictors of all workers, as one: each learns from its own traffic, operators see what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["Predictors"]

_NAMED = ("demoted", "coverage_alarms")
_COUNTED = ("drifts", "failures", "trips")
_STEPS = ("off", "none", "usual", "history", "learned")
"""What may decide, weakest first."""
_TRAINED = ("rows", "new_rows", "trainings")

_Report = Mapping[str, Any]


class Predictors:
    """Joins the workers' reports into one of the same form.

    What is counted adds up, and what a worker counted stays when it is gone. Figures are means, weighted by the
    outcomes behind them. A decision goes by what most workers go by, the weaker where they are split.
    """

    def __init__(self) -> None:
        self._buried: Counter[str] = Counter()
        self._sources: Counter[str] = Counter()
        self._trainings = 0

    def lost(self, report: _Report) -> None:
        """Keep what a worker that is gone counted."""
        if report["mode"] == "off":
            return
        self._buried.update({key: report[key] for key in _COUNTED})
        self._sources.update(report["sources"])
        if report["trainer"] is not None:
            self._trainings += report["trainer"]["trainings"]

    def joined(self, reports: Iterable[_Report]) -> dict[str, Any]:
        """Return the reports of the workers there are as one."""
        found = [report for report in reports if report["mode"] != "off"]
        if not found:
            return {"mode": "off"}
        sources = self._sources.copy()
        for report in found:
            sources.update(report["sources"])
        return {
            "mode": found[0]["mode"],
            "uses": found[0]["uses"],
            "order_by": _most([report["order_by"] for report in found]),
            "admit_by": _most([report["admit_by"] for report in found]),
            "all": _means([report["all"] for report in found]),
            "models": _models([report["models"] for report in found]),
            "steps": {step: _means([report["steps"][step] for report in found]) for step in found[0]["steps"]},
            **{
                key: sorted({name for report in found for name in report[key]})
                for key in ("demoted", "coverage_alarms")
            },
            **{key: self._buried[key] + sum(report[key] for report in found) for key in _COUNTED},
            "history_keys": sum(report["history_keys"] for report in found),
            "sources": dict(sources),
            **_model(found),
            "trainer": self._trainer([report["trainer"] for report in found if report["trainer"] is not None]),
        }

    def _trainer(self, found: Sequence[_Report]) -> dict[str, Any] | None:
        if not found:
            return None
        sums = {key: sum(one[key] for one in found) for key in _TRAINED}
        sums["trainings"] += self._trainings
        return {**found[0], **sums, "training": any(one["training"] for one in found)}


def _most(steps: Sequence[str]) -> str:
    """Return what most go by, of several the weakest."""
    counts = Counter(steps)
    return min(counts, key=lambda step: (-counts[step], _STEPS.index(step)))


def _means(rows: Sequence[_Report]) -> dict[str, Any]:
    """Return one row for several: `n` adds up, numbers are means weighted by it, all else is of the row with most."""
    most = max(rows, key=lambda row: row["n"])
    merged: dict[str, Any] = {"n": sum(row["n"] for row in rows)}
    for key, shown in most.items():
        if key == "n":
            continue
        known = [(row["n"], row[key]) for row in rows if row[key] is not None]
        if any(isinstance(value, bool | str | dict) for _, value in known) or not known:
            merged[key] = shown
        else:
            weight = sum(n for n, _ in known)
            merged[key] = sum(n * value for n, value in known) / weight if weight else shown
    return merged


def _models(tables: Sequence[Mapping[str, _Report]]) -> dict[str, Any]:
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: _means([table[name] for table in tables if name in table]) for name in names}


def _model(found: Sequence[_Report]) -> dict[str, Any]:
    """Return the learned model that has served longest, and for how long."""
    oldest = max(found, key=lambda report: report["model_age_s"] or 0.0)
    return {key: oldest[key] for key in ("model", "model_age_s")}
