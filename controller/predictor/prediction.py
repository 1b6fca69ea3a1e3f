"""What the predictor answers, and what it must remember to learn from the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Evidence", "Prediction", "Source"]


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


@dataclass(slots=True)
class Evidence:
    """What `LengthPredictor.observe` needs of the moment of prediction. Lengths are `log1p(tokens)`."""

    model: str
    tenant: str
    route: str
    max_tokens: int | None
    at: float
    """When the prediction was made, seconds of the predictor's clock."""
    scale: float
    """Usual output tokens of (model, tenant) at that moment."""
    constant50: float
    constant90: float
    """The per-model constants to beat: what one would say without looking at the request."""
    q50: float
    q90: float
    """The prediction before the conformal correction and before any cap."""
    p90: float
    """Ninth decile after the correction, before the cap."""
    levels: Sequence[tuple[str, int]] = ()
    """History keys, as (level, key)."""
    level_q50: Sequence[tuple[str, float]] = ()
    """What each level that took part said, for its own spread."""
    features: Sequence[float] | None = None
    """Feature vector; None when it was not computed, and then the outcome trains nothing."""
    boosted50: float | None = None
    """The learned model's own median, also when it was not used."""
    observed: bool = field(default=False)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Output length in tokens: the median orders, the ninth decile admits. Never above the caller's max_tokens."""

    p50: float
    p90: float
    source: Source
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
