"""What the data plane asks of a length predictor, and who gets one without asking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from controller.predictor.prediction import Prediction

__all__ = ["Predictor", "predictor_for"]

_ORDERED_BY_LENGTH = frozenset({"sjf", "predicted"})


class Predictor(Protocol):
    """Guesses output lengths in microseconds; `controller.predictor.LengthPredictor` is one."""

    def predict(
        self,
        *,
        model: str,
        tenant: str = "",
        route: str = "",
        text: str = "",
        prompt_tokens: int = 0,
        max_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Prediction:
        """Return the predicted output length. Never raises."""
        ...

    def observe(self, prediction: Prediction, output_tokens: int, finish_reason: str | None = None) -> None:
        """Learn from what became of it. Never raises."""
        ...


def predictor_for(policy: str) -> Predictor | None:
    """Return a predictor that learns from history alone, if `policy` orders by length; None otherwise."""
    if policy not in _ORDERED_BY_LENGTH:
        return None
    from controller.predictor.predictor import LengthPredictor

    return LengthPredictor(learn=False)
