"""Observations on their way between processes: plain lists, with times on the clock that the machine shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from controller.observation import Observation, Result

__all__ = ["observation_of", "row_of"]

_NAMES = tuple(field.name for field in fields(Observation))
_RESULT = _NAMES.index("result")

row_of = attrgetter(*_NAMES)
"""Returns an observation as a row; JSON takes it as it is."""


def observation_of(row: Sequence[Any]) -> Observation:
    """Return the observation that `row_of` wrote."""
    values = list(row)
    values[_RESULT] = Result(values[_RESULT])
    return Observation(*values)
