"""Published speed of a model on an accelerator, as a function of how many run together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PUBLISHED", "Profile", "interpolate"]


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Join the points by straight lines, and go on along the last one; constant before the first."""
    if x <= xs[0]:
        return ys[0]
    right = min(len(xs) - 1, bisect_right(xs, x))
    x0, x1, y0, y1 = xs[right - 1], xs[right], ys[right - 1], ys[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Profile:
    """Prefill of 512 tokens and decode of one token, in milliseconds, by batch size."""

    batches: tuple[float, ...] = (1.0, 4.0, 8.0, 16.0, 32.0)
    prefill_512_ms: tuple[float, ...] = (45.0, 85.0, 140.0, 230.0, 420.0)
    decode_ms: tuple[float, ...] = (8.0, 12.0, 18.0, 28.0, 45.0)

    def prefill_s(self, batch: float, prompt_tokens: float = 512.0) -> float:
        """Return the seconds to prefill a batch of prompts of that length."""
        return interpolate(self.batches, self.prefill_512_ms, batch) * prompt_tokens / 512_000.0

    def decode_s(self, batch: float) -> float:
        """Return the seconds for one token of each of a batch."""
        return interpolate(self.batches, self.decode_ms, batch) / 1000.0


PUBLISHED = Profile()
"""A 7B model on an A10G, as published: 5.6x the time a token for 32x the batch."""
