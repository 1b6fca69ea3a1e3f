"""When a prediction is no longer off by noise: the thing predicted is another one now."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

__all__ = ["ShiftDetector"]

_GROSS = math.log(3.0)
_SHIFT: Final = 0.7


class ShiftDetector:
    """Watches the log errors of a model, ln(measured / predicted), for a change of level.

    Two in a row on one side beyond ln 3, or four whose mean is beyond 0.7, and in both cases beyond what the usual
    spread explains (6 and 2 times), are a shift. Slow gains would take dozens of samples to follow a change by ten;
    fast ones would chase noise.
    """

    __slots__ = ("_errors",)

    def __init__(self) -> None:
        self._errors: deque[float] = deque(maxlen=4)

    def add(self, error: float, spread: float) -> tuple[float, int]:
        """Take an error in. Returns the shift (log; 0 for none) and how many errors it was seen in."""
        errors = self._errors
        if errors and errors[-1] * error <= 0.0:
            errors.clear()
        errors.append(error)
        run, total = len(errors), sum(errors)
        gross = max(_GROSS, 6.0 * spread)
        if abs(error) > gross and run > 1 and abs(errors[-2]) > gross:
            run, total = 2, errors[-2] + error
        elif run < 4 or abs(total) <= run * max(_SHIFT, 2.0 * spread):
            return 0.0, 0
        errors.clear()
        return total / run, run
