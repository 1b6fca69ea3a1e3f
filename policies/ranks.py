"""Where a length stands among those of late, whatever their scale."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["PLACES", "Ranks", "place"]

PER_OCTAVE: Final = 8
PLACES: Final = 20 * PER_OCTAVE
"""Lengths from 1 to 2^20 tokens are told apart, eight to an octave."""

_BLUR: Final = 2
"""Places on either side of its own that a length counts for as much as for its own."""
_EACH: Final = 1.0 / (2 * _BLUR + 1)
_ASSUMED: Final = range(4 * PER_OCTAVE, 11 * PER_OCTAVE)
"""Before anything was seen: 16 to 2048 tokens, every octave as likely as the next ..."""
_ASSUMED_WEIGHT: Final = 8.0
"""... which counts as much as so many lengths that were seen."""
_MEMORY: Final = 512.0
"""Once so much weight has come together, all of it is halved."""


def place(tokens: float) -> int:
    """Return the place of a length, 0 to PLACES - 1; lengths within 9 % of one another may share one."""
    if not tokens > 1.0:
        return 0
    return min(PLACES - 1, int(PER_OCTAVE * math.log2(min(tokens, 1e9))))


class Ranks:
    """A histogram of the newest lengths by place: some 250 to 500 of them, the older ones counting less.

    A rank is blind to scale and to spread. The longest of short answers stand where the longest of long ones do, and
    so do the longest guesses of a cautious predictor: a median varies far less than the lengths it is the median of.
    Near equals are told apart only a little, so that a difference of a few per cent never means half the ranks.
    """

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        each = _ASSUMED_WEIGHT / len(_ASSUMED)
        self._counts = [each if index in _ASSUMED else 0.0 for index in range(PLACES)]
        self._total = _ASSUMED_WEIGHT

    def rank(self, own: int) -> float:
        """Return the share of lengths below the place `own`, 0 to 1; its equals count half."""
        return min(1.0, (sum(self._counts[:own], 0.0) + 0.5 * self._counts[own]) / self._total)

    def add(self, own: int) -> None:
        """Take note of one length, by its place."""
        for near in range(own - _BLUR, own + _BLUR + 1):
            self._counts[min(PLACES - 1, max(0, near))] += _EACH
        self._total += 1.0
        if self._total >= _MEMORY:
            self._counts = [count / 2.0 for count in self._counts]
            self._total /= 2.0
