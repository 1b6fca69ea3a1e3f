"""Laws by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from controller.laws.aimd import AimdLaw
from controller.laws.bandit import BanditLaw
from controller.laws.base import Law
from controller.laws.deadline import DeadlineLaw
from controller.laws.fixed import FixedLaw
from controller.laws.gradient import GradientLaw
from controller.laws.options import SHARED, Option, check_options
from controller.laws.step import StepLaw

__all__ = ["LAWS", "STEERING", "check_steering", "law_options", "make_law"]

_SHARED = frozenset(option.name for option in SHARED)

_CLASSES = (FixedLaw, StepLaw, AimdLaw, GradientLaw, DeadlineLaw, BanditLaw)
LAWS: Mapping[str, Callable[..., Law]] = {law.name: law for law in _CLASSES}

STEERING = tuple(name for name, law in LAWS.items() if not getattr(law, "trials_only", False))
"""The laws that a pool may be given to; the others take part in trials only."""


def check_steering(name: str) -> None:
    """Raise ValueError for a law that may not be given a pool, saying what it is for and what to use instead."""
    if name in LAWS and name not in STEERING:
        raise ValueError(
            f"{name!r} explores on live requests, so it only takes part in trials: let it advise as shadow, "
            f"or take turns with the law in force in an experiment; accepted here: {', '.join(STEERING)}"
        )


def law_options(name: str) -> tuple[Option, ...]:
    """Return what the law called `name` can be told, the options that all laws share included.

    A law that came from elsewhere and declares no `options` has those of its constructor, with any value. Raises
    KeyError for an unknown name.
    """
    factory = LAWS[name]
    own: tuple[Option, ...] | None = getattr(factory, "options", None)
    if own is None:
        own = tuple(
            Option(parameter.name, parameter.default, "")
            for parameter in inspect.signature(factory).parameters.values()
            if isinstance(parameter.default, bool | int | float | str)
        )
    return (*own, *SHARED)


def make_law(name: str, options: Mapping[str, Any] | None = None) -> Law:
    """Build the law called `name`; what all laws share is checked and left to the caller.

    Raises ValueError for an unknown name, option or value.
    """
    factory = LAWS.get(name)
    if factory is None:
        raise ValueError(f"unknown law {name!r}; known are {', '.join(sorted(LAWS))}")
    given = check_options(name, law_options(name), options or {})
    try:
        return factory(**{key: value for key, value in given.items() if key not in _SHARED})
    except (TypeError, ValueError) as error:
        raise ValueError(f"law {name!r}: {error}") from error
