"""Quantile gradient boosting, in the training process only: nothing on the request path imports this module.

Two ensembles, p50 and p90, of `log1p(tokens / scale)`. Quantile loss beat squared loss on every metric measured;
quantiles pass through a monotone map unchanged, so the target may be as skewed as it likes. One thread throughout:
training is a guest on machines that are busy serving, and OpenMP's threads spin when they have to wait for a core.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped,unused-ignore]

from controller.predictor.export import Ensemble, EnsembleError, Node, compile_ensemble

__all__ = ["Fitted", "fit_quantile", "parity", "to_ensemble", "weighted_quantile"]

Floats = NDArray[np.float64]


class Fitted(NamedTuple):
    """A fitted model and the columns of x it was given."""

    model: HistGradientBoostingRegressor
    columns: NDArray[np.intp]
    features: int

    def predict(self, x: Floats) -> Floats:
        """Return the answers (rows,) to x (rows, features)."""
        with threadpool_limits(1):
            answers: Floats = self.model.predict(x[:, self.columns])
        return answers


def fit_quantile(
    x: Floats, y: Floats, weight: Floats, quantile: float, *, repeats: float = 1.0, trees: int = 120, seed: int = 0
) -> Fitted:
    """Fit one quantile of y (rows,) on x (rows, features); NaN in x means missing. All splits are numeric.

    `repeats` is how often a prompt occurs on average: one prompt sent to many models fills several rows, and a leaf
    that is one prompt learns it by heart. A split looks at a third of the features, but at ten or more.
    Columns without two different values have no split to offer and are left out: scikit-learn cannot bin them.
    """
    columns = np.flatnonzero(np.nanmax(x, axis=0, initial=-np.inf) > np.nanmin(x, axis=0, initial=np.inf))
    if not len(columns):
        raise EnsembleError("no feature has two different values")
    leaf = int(min(10.0 * min(repeats, 8.0) + 10.0, len(y) / 25.0)) + 1
    model = HistGradientBoostingRegressor(
        loss="quantile",
        quantile=quantile,
        max_iter=trees,
        learning_rate=0.06,
        max_leaf_nodes=8,
        min_samples_leaf=leaf,
        l2_regularization=1.0,
        max_features=max(0.3, min(1.0, 10.0 / len(columns))),
        early_stopping=False,
        random_state=seed,
    )
    with threadpool_limits(1):
        model.fit(x[:, columns], y, sample_weight=weight)
    return Fitted(model, columns, x.shape[1])


def to_ensemble(fitted: Fitted) -> Ensemble:
    """Read the fitted trees out of scikit-learn's private predictors. Raises EnsembleError when they have moved.

    A threshold of +inf (missing values against all others) becomes the largest float: equal for every finite value.
    """
    try:
        trees = tuple(_tree(stage[0].nodes, fitted.columns) for stage in fitted.model._predictors)
        baseline = float(np.ravel(fitted.model._baseline_prediction)[0])
        return Ensemble(fitted.features, baseline, trees)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise EnsembleError(f"this scikit-learn keeps its trees elsewhere: {error!r}") from error


def parity(fitted: Fitted, ensemble: Ensemble, rows: Floats) -> tuple[float, Floats]:
    """Return max |exported - scikit-learn| over `rows`, and scikit-learn's answers."""
    expected = fitted.predict(rows)
    score = compile_ensemble(ensemble)
    got = np.array([score(row) for row in rows.tolist()])
    return float(np.max(np.abs(got - expected), initial=0.0)), expected


def weighted_quantile(values: Floats, weight: Floats, q: float) -> float:
    """Return the smallest value with at least the share `q` of the weight at or below it."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(total, q * total[-1])))])


def _tree(nodes: Any, columns: NDArray[np.intp]) -> tuple[Node, ...]:
    if nodes["is_categorical"].any():
        raise EnsembleError("categorical splits are not exported")
    largest = sys.float_info.max
    return tuple(
        Node(0, 0.0, 0, 0, float(n["value"]), False)
        if n["is_leaf"]
        else Node(
            int(columns[n["feature_idx"]]),
            float(min(largest, max(-largest, n["num_threshold"]))),
            int(n["left"]),
            int(n["right"]),
            float(n["value"]),
            bool(n["missing_go_to_left"]),
        )
        for n in nodes
    )
