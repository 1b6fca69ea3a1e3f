"""Keyed history: what the same or similar requests got before, in bounded memory.

An exact repeat is the best single feature a proxy can have: on one prompt seen before, Kendall's tau rises from
about 0.36 (text alone) to 0.56, and on templated traffic history carries most of the signal. The cascade goes from
the widest group to the narrowest and lets each level pull the estimate with weight n/(n+k).

All lengths are `log1p(tokens)`.
"""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

__all__ = [
    "EXACT",
    "FEATURES",
    "LEVELS",
    "RELATIVE_AT",
    "SCALE_AT",
    "Blend",
    "History",
    "Level",
    "Said",
    "Track",
    "localise",
    "mix",
]

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

    __slots__ = ("_centre", "_next", "_top", "ewma", "n", "ring")

    def __init__(self) -> None:
        self.n = 0
        self.ewma = 0.0
        self.ring = array("d")
        self._next = 0
        self._centre: float | None = None
        """What `centre` returns, and `_top` the ninth decile, until the next outcome."""
        self._top = 0.0

    def add(self, value: float) -> None:
        """Take in one outcome. The mean is exact for the first RING outcomes, then exponentially weighted."""
        self.n += 1
        self.ewma += (value - self.ewma) / min(self.n, RING)
        self._centre = None
        if len(self.ring) < RING:
            self.ring.append(value)
        else:
            self.ring[self._next] = value
            self._next = (self._next + 1) % RING

    def ordered(self) -> list[float]:
        """Return the kept outcomes, oldest first."""
        return [*self.ring[self._next :], *self.ring[: self._next]]

    def centre(self) -> float:
        """Middle of the outcomes: the mean below four (nothing better is known), then the mid-mean."""
        if self._centre is None:
            self._centre = self._sum_up()
        return self._centre

    def above(self) -> float:
        """How far the ninth decile of the outcomes lies above their centre."""
        centre = self.centre()
        return max(0.0, self._top - centre)

    def _sum_up(self) -> float:
        ordered = sorted(self.ring)
        size = len(ordered)
        place = 0.9 * (size - 1)
        low = int(place)
        self._top = ordered[low] + (place - low) * (ordered[min(low + 1, size - 1)] - ordered[low])
        if size < 4:
            return self.ewma
        cut = size >> 2
        middle = ordered[cut : size - cut]
        return sum(middle) / len(middle)


class Said(NamedTuple):
    """What one level says of a request, in log1p(tokens)."""

    level: str
    centre: float
    top: float
    """The ninth decile."""
    weight: float
    """How far it pulls the estimate of the levels before it."""


class Blend(NamedTuple):
    """The cascade's answer in log1p(tokens)."""

    q50: float
    q90: float
    carrier: str
    """The level that carried it; empty when the base estimate did."""


def mix(q50: float, q90: float, said: Sequence[Said], only: frozenset[str] | None = None) -> Blend:
    """Let what the levels said (widest first, those in `only`) pull the base estimate (q50, q90)."""
    carrier = ""
    for level, centre, top, weight in said:
        if only is None or level in only:
            q50 += weight * (centre - q50)
            q90 += weight * (top - q90)
            if weight >= 0.5:
                carrier = level
    return Blend(q50, max(q50, q90), carrier)


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
                result.append(track.above() if track else math.nan)
        return result

    def hear(self, keys: Sequence[tuple[str, int]], scale: float) -> list[Said]:
        """Return what the levels in `keys` (widest first) say; `scale` is log1p(tokens)."""
        said = []
        for name, key in keys:
            level = self._by_name[name]
            track = self.track(key)
            if track is None or track.n < level.min_n:
                continue
            centre = track.centre() + (scale if level.relative else 0.0)
            size = len(track.ring)
            spread = (size * track.above() + 8 * self._spread[name]) / (size + 8)
            said.append(Said(name, centre, centre + spread, track.n / (track.n + level.k)))
        return said

    def observe(self, value: float, keys: Sequence[tuple[str, int]], said: Sequence[Said], scale: float) -> None:
        """Take note that a request with `keys` had outcome `value`, of which its levels had `said` this."""
        for name, centre, _, _ in said:
            missed = value - centre > self._spread[name]
            self._spread[name] = min(4.0, max(0.0, self._spread[name] + SPREAD_GAIN * (missed - 0.1)))
        for name, key in keys:
            track = self.track(key)
            if track is None:
                track = self._tracks[key] = Track()
                for _ in range(min(2, len(self._tracks) - self._capacity)):
                    self._tracks.popitem(last=False)
            track.add(value - scale if self._by_name[name].relative else value)

    def resize(self, capacity: int) -> None:
        """Keep at most `capacity` keys from now on; the surplus leaves a few at a time."""
        self._capacity = capacity

    def pages(self, limit: int = 2_000, size: int = 16) -> Iterator[list[Any]]:
        """Yield JSON-ready copies of the `limit` most recently used keys, `size` at a time."""
        newest = list(islice(reversed(self._tracks), limit))[::-1]
        yield []
        for start in range(0, len(newest), size):
            yield [
                [format(key, "x"), track.n, round(track.ewma, 4), [round(value, 4) for value in track.ordered()]]
                for key in newest[start : start + size]
                if (track := self._tracks.get(key)) is not None
            ]

    def spread(self) -> dict[str, float]:
        """Return how far the ninth decile lies above what each level says."""
        return dict(self._spread)

    def restore(self, spread: Mapping[str, Any], tracks: Iterable[Any]) -> None:
        """Take over what `spread` and `pages` returned. Raises ValueError, TypeError or KeyError otherwise."""
        widths = {name: float(spread.get(name, value)) for name, value in self._spread.items()}
        kept: OrderedDict[int, Track] = OrderedDict()
        for key, n, ewma, ring in tracks:
            track = kept[int(key, 16)] = Track()
            track.n, track.ewma = int(n), float(ewma)
            track.ring = array("d", ring[-RING:])
            if not track.ring or not all(map(math.isfinite, (*track.ring, track.ewma))):
                raise ValueError(f"a track of {ring}")
        while len(kept) > self._capacity:
            kept.popitem(last=False)
        self._spread, self._tracks = widths, kept
