"""How fast upstreams bring their answers forth, for charging those that nobody waited for."""

from __future__ import annotations

from typing import Final

__all__ = ["Paces"]

_GAIN: Final = 0.1
_MOST: Final = 256
"""Upstreams; they come from the configuration, and reloads may bring others."""


class Paces:
    """Seconds per output token of each upstream, as a moving average over answers that were counted."""

    __slots__ = ("_s_per_token",)

    def __init__(self) -> None:
        self._s_per_token: dict[str, float] = {}

    def learn(self, upstream: str, seconds: float, tokens: int) -> None:
        """Take in an answer of `tokens` that took `seconds` from its dispatch to its end."""
        pace, known = seconds / tokens, self._s_per_token.get(upstream)
        if known is None and len(self._s_per_token) >= _MOST:
            self._s_per_token.clear()
        self._s_per_token[upstream] = pace if known is None else known + _GAIN * (pace - known)

    def tokens_in(self, upstream: str, seconds: float, predicted: float) -> float:
        """Return how many of the `predicted` tokens an upstream has brought forth in `seconds`; all, if unknown."""
        pace = self._s_per_token.get(upstream)
        if pace is None:
            return predicted
        return predicted if pace <= 0.0 else min(predicted, max(0.0, seconds) / pace)
