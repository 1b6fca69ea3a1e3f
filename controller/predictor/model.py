"""A trained model as text lines of numbers, and ready to answer.

Line 1 is a header; then one line per tree of the p50 ensemble, of the p90 ensemble, and one line per probe: a
feature vector with what scikit-learn answers to it. Whoever takes a model over compiles it and answers the probes
first, so that a difference anywhere on the way keeps the old model in service. A line is small enough that a thread
can parse them one by one without holding anybody up. NaN is written as null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from controller.predictor.export import (
    Ensemble,
    EnsembleError,
    Score,
    check_tree,
    compile_ensemble,
    tree_from,
    tree_numbers,
)
from controller.predictor.scale import PRIOR_P50

__all__ = ["TOLERANCE", "Group", "LengthModel", "Probe", "parse_model", "write_model"]

KIND, VERSION = "trimtab-length-model", 1

TOLERANCE = 1e-9
"""Largest difference allowed between scikit-learn's answer and the exported one."""

Probe = tuple[Sequence[float], float, float]
"""A feature vector, and what scikit-learn answers to it at p50 and p90."""

Group = tuple[str, str, float, float, int]
"""Model, tenant, scale to train on, scale in service (both tokens), rows."""


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Two compiled ensembles. Their answers are `log1p(tokens / scale)`."""

    groups: Mapping[tuple[str, str], tuple[float, int]]
    """Scale in tokens, and rows it was trained on, per (model, tenant); tenant "" is the model as a whole."""
    reference: float
    """Scale of a model it was not trained on, until its own is known: the median one."""
    p50: Score
    p90: Score
    report: dict[str, Any]
    """What the training process said of it: rows, losses, parity."""
    parity: float
    """max |compiled - scikit-learn| over the probes, as measured in this process."""
    lines: tuple[str, ...] = field(repr=False)

    def scale(self, model: str, tenant: str) -> tuple[float, int]:
        """Return the scale in tokens to start from for (model, tenant), and the rows behind it; 0 when unknown."""
        return self.groups.get((model, tenant)) or self.groups.get((model, "")) or (self.reference, 0)


def write_model(
    names: Sequence[str],
    groups: Sequence[Group],
    p50: Ensemble,
    p90: Ensemble,
    probes: Sequence[Probe],
    report: dict[str, Any],
) -> Iterator[str]:
    """Yield the lines of a model."""
    yield json.dumps(
        {
            "kind": KIND,
            "version": VERSION,
            "names": list(names),
            "groups": [[model, tenant, scale, rows] for model, tenant, scale, _, rows in groups],
            "p50": {"baseline": p50.baseline, "trees": len(p50.trees)},
            "p90": {"baseline": p90.baseline, "trees": len(p90.trees)},
            "probes": len(probes),
            "report": report,
        }
    )
    for ensemble in (p50, p90):
        for tree in ensemble.trees:
            yield json.dumps(tree_numbers(tree), separators=(",", ":"))
    for features, at50, at90 in probes:
        yield json.dumps([[None if value != value else value for value in features], at50, at90])


def parse_model(
    lines: Iterable[str], *, names: Sequence[str], pause: Callable[[], None] = lambda: None
) -> LengthModel:
    """Read, compile and probe a model for the features `names`. Raises EnsembleError when anything is off.

    `pause` is called between pieces of work of well under a millisecond.
    """
    lines = tuple(lines)
    try:
        head = json.loads(lines[0])
        if (head["kind"], head["version"]) != (KIND, VERSION):
            raise EnsembleError(f"not a model of version {VERSION}")
        if tuple(head["names"]) != tuple(names):
            raise EnsembleError("the model was trained on other features")
        pause()
        n50, n90, probes = int(head["p50"]["trees"]), int(head["p90"]["trees"]), int(head["probes"])
        if len(lines) != 1 + n50 + n90 + probes:
            raise EnsembleError(f"{len(lines)} lines, the header promises {1 + n50 + n90 + probes}")
        p50 = _read(lines[1 : 1 + n50], len(names), head["p50"]["baseline"], pause)
        p90 = _read(lines[1 + n50 : 1 + n50 + n90], len(names), head["p90"]["baseline"], pause)
        parity = _probe(p50, p90, lines[1 + n50 + n90 :], pause)
        report = dict(head["report"])
        groups = {(str(m), str(t)): (_scale(scale), int(rows)) for m, t, scale, rows in head["groups"]}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, EnsembleError):
            raise
        raise EnsembleError(f"not a model: {error!r}") from error
    if not parity < TOLERANCE:
        raise EnsembleError(f"compiled and trained model differ by {parity:.3g}, at most {TOLERANCE:g} is allowed")
    reference = median(scale for scale, _ in groups.values()) if groups else PRIOR_P50
    return LengthModel(groups, reference, p50, p90, report, parity, lines)


def _scale(value: Any) -> float:
    scale = float(value)
    if not 0.0 < scale < math.inf:
        raise EnsembleError(f"a scale of {scale}")
    return scale


def _read(lines: Sequence[str], features: int, baseline: Any, pause: Callable[[], None]) -> Score:
    trees = []
    for line in lines:
        tree = tree_from(json.loads(line))
        check_tree(tree, features)
        trees.append(tree)
        pause()
    return compile_ensemble(Ensemble(features, float(baseline), tuple(trees), sound=True), pause)


def _probe(p50: Score, p90: Score, lines: Sequence[str], pause: Callable[[], None]) -> float:
    worst = 0.0
    for index, line in enumerate(lines):
        features, at50, at90 = json.loads(line)
        vector = [math.nan if value is None else float(value) for value in features]
        for gap in (abs(p50(vector) - at50), abs(p90(vector) - at90)):
            if gap != gap:  # no comparison below would notice
                return math.inf
            worst = max(worst, gap)
        if index % 4 == 3:
            pause()
    return worst
