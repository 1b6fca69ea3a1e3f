"""Keyed history: what the same or similar requests got before, in bounded memory.

An exact repeat is the best single feature a proxy can have: on one prompt seen before, Kendall's tau rises from
about 0.36 (text alone) to 0.56, and on templated traffic history carries most of the signal. The cascade goes from
the widest group to the narrowest and lets each level pull the estimate with weight n/(n+k).

All lengths are `log1p(tokens)`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["EXACT", "FEATURES", "LEVELS", "RELATIVE_AT", "SCALE_AT", "Blend", "History", "Level", "Track", "localise"]

RING = 16
"""Newest outcomes kept per key."""

SPREAD_GAIN = 0.1
"""Step of the descent that tracks how far the ninth decile lies above what a level says."""


class Level(NamedTuple):
    """One step of the cascade."""

    name: str
    min_n: int
    """Outcomes a key must have before it speaks."""
    k: float
    """Shrinkage: a key with n outcomes pulls with weight n/(n+k)."""
    relative: bool
    """Whether lengths are relative to the model's scale, so that models share the key."""


LEVELS: Sequence[Level] = (
    Level("size", 5, 6.0, False),
    Level("opening", 5, 6.0, False),
    Level("group", 5, 3.0, False),
    Level("elsewhere", 1, 2.0, True),
    Level("prompt", 1, 0.7, False),
)
"""Widest first, so that the narrowest has the last word."""

EXACT = frozenset({"elsewhere", "prompt"})
"""Levels that know the very prompt."""

FEATURES: Sequence[str] = (
    "log_scale",
    "group_n",
    "group_centre",
    "group_above",
    "opening_n",
    "opening_centre",
    "size_n",
    "size_centre",
)
"""Names of what `History.features` returns, in order."""

SCALE_AT, RELATIVE_AT = -8, (-6, -3, -1)
"""Where, from the end of a feature vector, the scale goes, and what is taken relative to it."""


def localise(features: Sequence[float], log_scale: float) -> list[float]:
    """Return a feature vector relative to the scale in force: rows keep absolute lengths, models see relative."""
    local = list(features)
    local[SCALE_AT] = log_scale
    for place in RELATIVE_AT:
        local[place] -= log_scale
    return local


class Track:
    """The newest outcomes of one key."""

    __slots__ = ("_next", "ewma", "n", "ring")

    def __init__(self) -> None:
        self.n = 0
        self.ewma = 0.0
        self.ring: list[float] = []
        self._next = 0

    def add(self, value: float) -> None:
        """Take in one outcome. The mean is exact for the first RING outcomes, then exponentially weighted."""
        self.n += 1
        self.ewma += (value - self.ewma) / min(self.n, RING)
        if len(self.ring) < RING:
            self.ring.append(value)
        else:
            self.ring[self._next] = value
            self._next = (self._next + 1) % RING

    def ordered(self) -> list[float]:
        """Return the kept outcomes, oldest first."""
        return self.ring[self._next :] + self.ring[: self._next]

    def centre(self) -> float:
        """Middle of the outcomes: the mean below four (nothing better is known), then the mid-mean."""
        size = len(self.ring)
        if size < 4:
            return self.ewma
        ordered = sorted(self.ring)
        cut = size >> 2
        middle = ordered[cut : size - cut]
        return sum(middle) / len(middle)

    def above(self, centre: float) -> float:
        """How far the ninth decile of the outcomes lies above `centre`."""
        ordered = sorted(self.ring)
        place = 0.9 * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return max(0.0, ordered[low] + (place - low) * (ordered[high] - ordered[low]) - centre)


class Blend(NamedTuple):
    """The cascade's answer in log1p(tokens)."""

    q50: float
    q90: float
    carrier: str
    """The level that carried it; empty when the base estimate did."""
    said: tuple[tuple[str, float], ...]
    """What each level that took part said."""


class History:
    """Outcomes by key, at most `capacity` keys; the least recently used leave."""

    def __init__(self, *, capacity: int = 20_000, levels: Sequence[Level] = LEVELS) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self.levels = levels
        self._by_name = {level.name: level for level in levels}
        self._capacity = capacity
        self._tracks: OrderedDict[int, Track] = OrderedDict()
        # ninth decile of (outcome - what the level said), tracked by stochastic quantile descent
        self._spread = {level.name: 0.6 for level in levels}

    def __len__(self) -> int:
        return len(self._tracks)

    def track(self, key: int) -> Track | None:
        """Return what is known under `key`, marking it as used."""
        track = self._tracks.get(key)
        if track is not None:
            self._tracks.move_to_end(key)
        return track

    def features(self, keys: Sequence[tuple[str, int]]) -> list[float]:
        """Return the features named in FEATURES, before `localise`: what the template's history says.

        Exact repeats are left out on purpose: in training most prompts would have them or most would not, and a model
        that leans on them is lost where they are missing. They are blended in afterwards.
        """
        known = {name: self._tracks.get(key) for name, key in keys}
        result = [0.0]
        for name in ("group", "opening", "size"):
            track = known.get(name)
            centre = track.centre() if track else math.nan
            result += (float(min(track.n, RING)) if track else 0.0, centre)
            if name == "group":
                result.append(track.above(centre) if track else math.nan)
        return result

    def blend(self, q50: float, q90: float, keys: Sequence[tuple[str, int]], scale: float) -> Blend:
        """Let the levels in `keys` (widest first) pull the base estimate (q50, q90); `scale` is log1p(tokens)."""
        carrier, said = "", []
        for name, key in keys:
            level = self._by_name[name]
            track = self.track(key)
            if track is None or track.n < level.min_n:
                continue
            centre = track.centre() + (scale if level.relative else 0.0)
            size = len(track.ring)
            spread = (size * track.above(track.centre()) + 8 * self._spread[name]) / (size + 8)
            weight = track.n / (track.n + level.k)
            q50 += weight * (centre - q50)
            q90 += weight * (centre + spread - q90)
            said.append((name, centre))
            if weight >= 0.5:
                carrier = name
        return Blend(q50, max(q50, q90), carrier, tuple(said))

    def observe(
        self, value: float, keys: Sequence[tuple[str, int]], said: Sequence[tuple[str, float]], scale: float
    ) -> None:
        """Take note that a request with `keys` had outcome `value`, of which its levels had `said` this."""
        for name, centre in said:
            missed = value - centre > self._spread[name]
            self._spread[name] = min(4.0, max(0.0, self._spread[name] + SPREAD_GAIN * (missed - 0.1)))
        for name, key in keys:
            track = self.track(key)
            if track is None:
                track = self._tracks[key] = Track()
                if len(self._tracks) > self._capacity:
                    self._tracks.popitem(last=False)
            track.add(value - scale if self._by_name[name].relative else value)

    def state(self, limit: int = 2_000) -> dict[str, Any]:
        """Return a JSON-ready copy of the `limit` most recently used keys."""
        newest = list(self._tracks.items())[-limit:]
        tracks = [[format(key, "x"), track.n, track.ewma, track.ordered()] for key, track in newest]
        return {"spread": dict(self._spread), "tracks": tracks}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over `state`. Raises ValueError, TypeError or KeyError when it is not one."""
        spread = {name: float(state["spread"].get(name, value)) for name, value in self._spread.items()}
        tracks: OrderedDict[int, Track] = OrderedDict()
        for key, n, ewma, ring in state["tracks"][-self._capacity :]:
            track = tracks[int(key, 16)] = Track()
            track.n, track.ewma = int(n), float(ewma)
            track.ring = [float(value) for value in ring[-RING:]]
        self._spread, self._tracks = spread, tracks
