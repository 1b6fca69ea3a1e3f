"""How big a job is, as far as anyone can know before it has run."""

from __future__ import annotations

import math
from typing import Final

from policies.base import Job

__all__ = ["DEFAULT_OUTPUT_TOKENS", "bounded", "expected_output", "finite"]

DEFAULT_OUTPUT_TOKENS: Final = 256.0
"""What an answer of unknown length is taken for until something better is known."""


def finite(name: str, value: float, *, above: float = 0.0, inclusive: bool = False) -> float:
    """Return `value` when it is a finite number above `above` (or equal to it, if `inclusive`).

    Raises ValueError that names the option, its value and the accepted range.
    """
    accepted = (
        isinstance(value, int | float) and math.isfinite(value) and (value > above or (inclusive and value == above))
    )
    if not accepted:
        raise ValueError(f"{name} must be a finite number {'>=' if inclusive else '>'} {above:g}, not {value!r}")
    return float(value)


def bounded(value: float, bound: float) -> float:
    """Bring `value` into 0..`bound`; not-a-number counts as 0, so that no key can poison the heap."""
    if not value > 0.0:
        return 0.0
    return value if value < bound else bound


def expected_output(job: Job, default: float = DEFAULT_OUTPUT_TOKENS) -> float:
    """Return the output tokens to expect: the predicted median, else `default`, within max_tokens."""
    predicted = job.predicted_tokens
    expected = default if predicted is None or not predicted >= 0.0 else predicted
    if job.max_tokens is not None and job.max_tokens < expected:
        return float(max(job.max_tokens, 0))
    return expected
