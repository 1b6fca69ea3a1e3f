"""Keyed history: what the same or similar requests got before, in bounded memory.

An exact repeat is the best single feature a proxy can have: on one prompt seen before, Kendall's tau rises from
about 0.36 (text alone) to 0.56, and on templated traffic history carries most of the signal. The cascade goes from
the widest group to the narrowest and lets each level pull the estimate with weight n/(n+k).

All lengths are `log1p(tokens)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from controller.predictor import track
from controller.predictor.recent import Recent

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
    "localise",
    "mix",
]

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
    """Outcomes by key, at most `capacity` keys; what was not used for long leaves."""

    def __init__(self, *, capacity: int = 20_000, levels: Sequence[Level] = LEVELS) -> None:
        self.levels = levels
        self._by_name = {level.name: level for level in levels}
        self._capacity = capacity
        self._tracks: Recent[bytes] = Recent(capacity)
        # ninth decile of (outcome - what the level said), tracked by stochastic quantile descent
        self._spread = {level.name: 0.6 for level in levels}

    def __len__(self) -> int:
        return len(self._tracks)

    def features(self, keys: Sequence[tuple[str, int]]) -> list[float]:
        """Return the features named in FEATURES, before `localise`: what the template's history says.

        Exact repeats are left out on purpose: in training most prompts would have them or most would not, and a model
        that leans on them is lost where they are missing. They are blended in afterwards.
        """
        known = {name: self._tracks.get(key) for name, key in keys}
        result = [0.0]
        for name in ("group", "opening", "size"):
            packed = known.get(name)
            if packed is None:
                result += (0.0, math.nan, math.nan) if name == "group" else (0.0, math.nan)
                continue
            found = track.read(packed)
            result += (float(min(found.n, track.RING)), found.centre)
            if name == "group":
                result.append(found.above)
        return result

    def hear(self, keys: Sequence[tuple[str, int]], scale: float) -> list[Said]:
        """Return what the levels in `keys` (widest first) say; `scale` is log1p(tokens)."""
        said = []
        for name, key in keys:
            packed = self._tracks.use(key)
            if packed is None:
                continue
            level, found = self._by_name[name], track.read(packed)
            if found.n < level.min_n:
                continue
            centre = found.centre + (scale if level.relative else 0.0)
            size = min(found.n, track.RING)
            spread = (size * found.above + 8 * self._spread[name]) / (size + 8)
            said.append(Said(name, centre, centre + spread, found.n / (found.n + level.k)))
        return said

    def observe(self, value: float, keys: Sequence[tuple[str, int]], said: Sequence[Said], scale: float) -> None:
        """Take note that a request with `keys` had outcome `value`, of which its levels had `said` this."""
        for name, centre, _, _ in said:
            missed = value - centre > self._spread[name]
            self._spread[name] = min(4.0, max(0.0, self._spread[name] + SPREAD_GAIN * (missed - 0.1)))
        for name, key in keys:
            own = value - scale if self._by_name[name].relative else value
            self._tracks.put(key, track.add(self._tracks.get(key), own))

    def resize(self, capacity: int) -> None:
        """Keep at most `capacity` keys from now on; the surplus leaves a few at a time."""
        self._capacity = capacity
        self._tracks.resize(capacity)

    def pages(self, limit: int = 2_000, size: int = 16) -> Iterator[list[Any]]:
        """Yield JSON-ready copies of the `limit` most recently used keys, at most `size` at a time."""
        for keys in self._tracks.newest(limit):
            for start in range(0, len(keys), size):
                found = [(key, self._tracks.get(key)) for key in keys[start : start + size]]
                yield [_page(key, packed) for key, packed in found if packed is not None]

    def spread(self) -> dict[str, float]:
        """Return how far the ninth decile lies above what each level says."""
        return dict(self._spread)

    def restore(self, spread: Mapping[str, Any], tracks: Iterable[Any]) -> None:
        """Take over what `spread` and `pages` returned. Raises ValueError, TypeError or KeyError otherwise."""
        widths = {name: float(spread.get(name, value)) for name, value in self._spread.items()}
        kept: Recent[bytes] = Recent(self._capacity)
        for key, n, mean, ring in tracks:
            values = [float(value) for value in ring[-track.RING :]]
            kept.put(int(key, 16), track.pack(max(int(n), len(values)), float(mean), values))
        self._spread, self._tracks = widths, kept


def _page(key: int, packed: bytes) -> list[Any]:
    kept = [round(value, 4) for value in track.outcomes(packed)]
    found = track.read(packed)
    return [format(key, "x"), found.n, round(found.mean, 4), kept]
