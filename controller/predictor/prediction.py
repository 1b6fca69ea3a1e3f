"""What the predictor answers, and what it must remember to learn from the outcome."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from controller.predictor.history import Blend
from controller.predictor.scale import Constants

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
    constants: Constants
    """What one would say without looking at the request: the constant to beat."""
    keys: Sequence[tuple[str, int]] = ()
    """History keys, as (level, key), widest first."""
    features: Sequence[float] | None = None
    """Feature vector; None when it was not computed, and then the outcome trains nothing."""
    boosted50: float | None = None
    boosted90: float | None = None
    """The learned model's own answer, also when it was not listened to."""
    uncorrected50: float | None = None
    """The same on the scale it was trained on, to measure how far that is off."""
    blend: Blend | None = None
    """The prediction before the conformal correction and before any cap."""
    p90: float = 0.0
    """Ninth decile in tokens, after the correction, before the cap."""
    observed: bool = False

    @property
    def log_scale(self) -> float:
        """The usual length of (model, tenant), as `log1p(tokens)`."""
        return math.log1p(self.constants.p50)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Output length in tokens: the median orders, the ninth decile admits. Never above the caller's max_tokens."""

    p50: float
    p90: float
    source: Source
    evidence: Evidence | None = field(default=None, repr=False, compare=False)
