"""Laws by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controller.laws.aimd import AimdLaw
from controller.laws.bandit import BanditLaw
from controller.laws.base import Law
from controller.laws.deadline import DeadlineLaw
from controller.laws.fixed import FixedLaw
from controller.laws.gradient import GradientLaw
from controller.laws.step import StepLaw

__all__ = ["LAWS", "make_law"]

LAWS: Mapping[str, Callable[..., Law]] = {
    "fixed": FixedLaw,
    "step": StepLaw,
    "aimd": AimdLaw,
    "gradient": GradientLaw,
    "deadline": DeadlineLaw,
    "bandit": BanditLaw,
}


def make_law(name: str, options: Mapping[str, Any] | None = None) -> Law:
    """Build the law called `name`. Raises ValueError for an unknown name, option or value."""
    factory = LAWS.get(name)
    if factory is None:
        raise ValueError(f"unknown law {name!r}; known are {', '.join(sorted(LAWS))}")
    try:
        return factory(**dict(options or {}))
    except TypeError as error:
        raise ValueError(f"law {name!r}: {error}") from error
