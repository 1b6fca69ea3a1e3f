"""What the predictor answers, and what it must remember to learn from the outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from controller.predictor.history import Said
from controller.predictor.ladder import Rung
from controller.predictor.scale import PRIOR_P50, PRIOR_P90, Constants

__all__ = ["Evidence", "Prediction", "Source", "Step", "cap", "capped"]


class Source(StrEnum):
    """Which step of the ladder carried a prediction, strongest first."""

    PROMPT = "prompt"
    """This very prompt was answered before."""
    TEMPLATE = "template"
    """Prompts with the same system prompt, prefix group or opening were answered before."""
    BOOSTED = "boosted"
    """The learned quantile model."""
    TENANT = "tenant"
    """What this tenant usually gets from this model."""
    MODEL = "model"
    """What this model usually answers."""
    PRIOR = "prior"
    """Nothing is known yet."""


class Step(NamedTuple):
    """What one step of the ladder answers; `log` values are log1p(tokens)."""

    rung: Rung
    log50: float
    p50: float
    """Median in tokens, not capped."""
    p90: float
    """Ninth decile in tokens, corrected, not capped."""
    carrier: str
    """The level of history that carried it; empty when none did."""


@dataclass(slots=True)
class Evidence:
    """What `LengthPredictor.observe` needs of the moment of prediction. Lengths are `log1p(tokens)`."""

    model: str
    tenant: str
    route: str
    max_tokens: int | None
    at: float
    """When the prediction was made, seconds of the predictor's clock."""
    constants: Constants
    """What one would say without looking at the request: the constant to beat."""
    log_scale: float
    """The usual length of (model, tenant)."""
    keys: Sequence[tuple[str, int]] = ()
    """History keys, as (level, key), widest first."""
    said: Sequence[Said] = ()
    """What the levels of history said."""
    features: Sequence[float] | None = None
    """Feature vector; None when it was not computed, and then the outcome trains nothing."""
    boosted50: float | None = None
    boosted90: float | None = None
    """The learned model's own answer, also when it was not listened to."""
    uncorrected50: float | None = None
    """The same on the scale it was trained on, to measure how far that is off."""
    steps: Sequence[Step] = ()
    """What each step of the ladder answered, strongest first; the last one is the usual length."""
    p90: float = 0.0
    """Ninth decile that was answered, in tokens, before the cap."""
    observed: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """Output length in tokens: the median orders, the ninth decile admits. Never above the caller's max_tokens."""

    p50: float
    p90: float
    source: Source
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
    orders: bool = False
    """Whether the median may decide anything; False while nothing is known."""
    admits: bool = False
    """Whether the ninth decile may; False while no step's has proven itself."""


def cap(tokens: float, max_tokens: int | None) -> float:
    """Return `tokens`, at most the caller's bound where there is one."""
    return tokens if max_tokens is None or max_tokens <= 0 or tokens < max_tokens else float(max_tokens)


def capped(
    p50: float,
    p90: float,
    source: Source,
    max_tokens: int | None,
    evidence: Evidence | None,
    orders: bool,
    admits: bool,
) -> Prediction:
    """Make a prediction of finite numbers with 0 <= p50 <= p90 <= max_tokens, whatever came in."""
    if not math.isfinite(p50) or p50 < 0:
        p50, source, orders = PRIOR_P50, Source.PRIOR, False
    if not math.isfinite(p90) or p90 < p50:
        p90, admits = max(p50, PRIOR_P90), False
    try:
        return Prediction(cap(p50, max_tokens), cap(p90, max_tokens), source, evidence, orders, admits)
    except TypeError:  # max_tokens that is no number bounds nothing
        return Prediction(p50, p90, source, evidence, orders, admits)
