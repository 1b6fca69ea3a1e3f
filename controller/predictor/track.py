"""The newest outcomes of one key, packed: a table of many thousands then holds nothing that the collector walks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

__all__ = ["RING", "Track", "add", "outcomes", "pack", "read"]

RING = 16
"""Newest outcomes kept per key."""

_HEAD = Struct("<qddd")
_RINGS = [Struct(f"<{size}d") for size in range(RING + 1)]


class Track(NamedTuple):
    """How many outcomes there were and what they come to; all lengths are `log1p(tokens)`."""

    n: int
    mean: float
    """Exact for the first RING outcomes, then exponentially weighted."""
    centre: float
    """Middle of the kept outcomes: the mean below four (nothing better is known), then the mid-mean."""
    top: float
    """Ninth decile of the kept outcomes."""

    @property
    def above(self) -> float:
        """How far the ninth decile of the outcomes lies above their centre."""
        return max(0.0, self.top - self.centre)


def read(packed: bytes) -> Track:
    """Return what a packed track says."""
    return Track._make(_HEAD.unpack_from(packed))


def outcomes(packed: bytes) -> tuple[float, ...]:
    """Return the kept outcomes, oldest first."""
    return _RINGS[(len(packed) - _HEAD.size) // 8].unpack_from(packed, _HEAD.size)


def add(packed: bytes | None, value: float) -> bytes:
    """Return the track with one more outcome; a new one without `packed`."""
    if packed is None:
        return pack(1, value, (value,))
    n, mean, _, _ = _HEAD.unpack_from(packed)
    n += 1
    return pack(n, mean + (value - mean) / min(n, RING), (*outcomes(packed), value)[-RING:])


def pack(n: int, mean: float, kept: Sequence[float]) -> bytes:
    """Return a track of `kept`, the newest outcomes, oldest first. Raises ValueError when they are none."""
    size = len(kept)
    if not 0 < size <= RING or not all(map(math.isfinite, (*kept, mean))):
        raise ValueError(f"a track of {kept}")
    ordered = sorted(kept)
    place = 0.9 * (size - 1)
    low = int(place)
    top = ordered[low] + (place - low) * (ordered[min(low + 1, size - 1)] - ordered[low])
    centre = mean
    if size >= 4:
        cut = size >> 2
        middle = ordered[cut : size - cut]
        centre = sum(middle) / len(middle)
    return _HEAD.pack(n, mean, centre, top) + _RINGS[size].pack(*kept)
