"""Answers cut by max_tokens: known only to be at least that long. Training on them as they are would bias short.

Portnoy's redistribution to the right (2003), with the marginal Kaplan-Meier estimate (1958) in place of the
conditional one: an answer cut at c sits at the quantile level F(c). For a quantile q at or below F(c) it simply lies
above, and stays where it is; beyond, its weight is split, (q - F(c)) / (1 - F(c)) of it at c and the rest far away.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["kaplan_meier", "redistribute"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def kaplan_meier(values: Floats, censored: Bools, weight: Floats) -> Floats:
    """Return F(value) for each row: the estimated share of true values at or below it, from cut rows too."""
    order = np.lexsort((censored, values))  # at equal values, whole answers come before cut ones
    at_risk = np.cumsum(weight[order][::-1])[::-1]
    dying = np.where(censored[order], 0.0, weight[order])
    survival = np.cumprod(1.0 - np.divide(dying, at_risk, out=np.zeros_like(dying), where=at_risk > 0))
    result = np.empty_like(survival)
    result[order] = 1.0 - survival
    return np.clip(result, 0.0, 1.0)


def redistribute(
    x: Floats, values: Floats, censored: Bools, weight: Floats, q: float
) -> tuple[Floats, Floats, Floats]:
    """Return (x, values, weights) to fit the quantile `q` on, with cut rows split as described above."""
    if not censored.any():
        return x, values, weight
    level = kaplan_meier(values, censored, weight)
    split = np.flatnonzero(censored & (level < q) & (level < 1.0))
    share = (q - level[split]) / (1.0 - level[split])
    kept = weight.copy()
    kept[split] *= share
    # A row far above has the same gradient wherever it is; this is far enough and keeps the numbers tame.
    far = np.full(len(split), float(values.max()) + 1.0)
    return (
        np.concatenate([x, x[split]]),
        np.concatenate([values, far]),
        np.concatenate([kept, weight[split] * (1.0 - share)]),
    )
