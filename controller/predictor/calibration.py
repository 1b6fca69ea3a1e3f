"""The predictor's own live report: is it worth listening to, measured on what it said before it knew."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from itertools import islice
from struct import Struct
from typing import Any, NamedTuple

__all__ = ["Calibration", "Outcome", "kendall_tau", "pinball"]


def pinball(actual: float, predicted: float, q: float) -> float:
    """Quantile loss: q*(y - p) above the prediction, (1 - q)*(p - y) below (Koenker and Bassett, 1978)."""
    return max(q * (actual - predicted), (q - 1.0) * (actual - predicted))


def kendall_tau(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Kendall's tau-b of two equally long sequences; 0 when either is constant. About n log n for n in the hundreds.

    Concordant minus discordant pairs over sqrt(pairs untied in x * pairs untied in y) (Kendall, 1945).
    """
    n = len(xs)
    seen: list[float] = []
    held: list[float] = []
    score = untied_x = 0
    last = math.nan
    for x, y in sorted(zip(xs, ys, strict=True)):
        if x != last:  # those of one x are not compared with each other
            for value in held:
                insort(seen, value)
            held.clear()
            last = x
        below = bisect_left(seen, y)
        score += below + bisect_right(seen, y, below) - len(seen)
        untied_x += len(seen)
        held.append(y)
    untied_y = (n * (n - 1) - sum(count * (count - 1) for count in Counter(ys).values())) // 2
    return score / math.sqrt(untied_x * untied_y) if untied_x and untied_y else 0.0


class Outcome(NamedTuple):
    """One prediction beside what came of it, in tokens."""

    p50: float
    p90: float
    constant50: float
    constant90: float
    boosted50: float | None
    actual: float


class _Rolling:
    """The newest outcomes, and the sums over them that a report is made of."""

    __slots__ = ("boosted", "ring", "seen", "sums", "tau", "tau_at")

    def __init__(self, window: int) -> None:
        self.ring: deque[bytes] = deque(maxlen=window)
        """Packed, so that the collector has nothing to walk here: p50, actual, whether boosted, the terms."""
        self.sums = [0.0] * len(_SUMS)
        self.boosted = 0
        """Outcomes that the learned model took part in."""
        self.seen = 0
        self.tau: float | None = None
        self.tau_at = 0
        """How many had been seen when `tau` was computed."""

    def add(self, packed: bytes) -> None:
        self.seen += 1
        if len(self.ring) == self.ring.maxlen:
            self._count(self.ring[0], -1)
        self.ring.append(packed)
        self._count(packed, 1)

    def rank(self) -> None:
        """Bring `tau` up to date."""
        newest = [_PAIR.unpack_from(packed) for packed in islice(reversed(self.ring), _RANKED)]
        self.tau = kendall_tau([p50 for p50, _ in newest], [actual for _, actual in newest])
        self.tau_at = self.seen

    def _count(self, packed: bytes, sign: int) -> None:
        _, _, shadow, *terms = _ROW.unpack(packed)
        self.boosted += sign * shadow
        for place, term in enumerate(terms):
            self.sums[place] += sign * term


class Calibration:
    """Rolling figures over the newest `window` outcomes, per model and over all.

    Sums are kept as outcomes come; rank correlation, which takes a sort, is brought up to date by `refresh`, one
    model a call, so that neither an outcome nor a report ever takes long.
    """

    def __init__(self, *, window: int = 500, capacity: int = 64, every: int = 25) -> None:
        self._window = window
        self._capacity = capacity
        self._every = every
        self._rolling: OrderedDict[str, _Rolling] = OrderedDict()

    def observe(self, model: str, outcome: Outcome) -> None:
        """Take in one outcome."""
        packed = _ROW.pack(outcome.p50, outcome.actual, outcome.boosted50 is not None, *_terms(outcome))
        for name in (model, ""):
            rolling = self._rolling.get(name)
            if rolling is None:
                rolling = self._rolling[name] = _Rolling(self._window)
                if len(self._rolling) > self._capacity:
                    del self._rolling[next(name for name in self._rolling if name)]
            else:
                self._rolling.move_to_end(name)
            rolling.add(packed)

    def refresh(self) -> None:
        """Bring the rank correlation of the model that needs it most up to date, if any does."""
        ranked = ((rolling.seen - rolling.tau_at, name == "", name) for name, rolling in self._rolling.items())
        news, _, name = max(ranked, default=(0, False, ""))
        if news >= self._every:
            self._rolling[name].rank()

    def models(self) -> list[str]:
        """Return the models with outcomes, least recently seen first."""
        return [name for name in self._rolling if name]

    def report(self, model: str = "") -> dict[str, Any]:
        """Return tau, pinball ratios to the constant, coverage and errors of `model`, "" for all together.

        tau, over the newest 250, within one model says what ordering gets from the predictor; over all models it also
        holds the difference between the models. Everything is None below 20 outcomes, tau until `refresh`.
        """
        rolling = self._rolling.get(model)
        n = 0 if rolling is None else len(rolling.ring)
        if rolling is None or n < _FEW:
            return {"n": n, **dict.fromkeys(_FIGURES)}
        sums = dict(zip(_SUMS, rolling.sums, strict=True))
        return {
            "n": n,
            "tau": rolling.tau,
            "pinball50_ratio": _ratio(sums["loss50"], sums["constant50"]),
            "pinball90_ratio": _ratio(sums["loss90"], sums["constant90"]),
            "boosted50_ratio": _ratio(sums["boosted"], sums["beside"]) if rolling.boosted >= _FEW else None,
            "coverage90": sums["covered"] / n,
            "mae": max(0.0, 2.0 * sums["loss50"] / n),
            "constant_mae": max(0.0, 2.0 * sums["constant50"] / n),
            "bias": sums["log"] / n,
        }


_FEW = 20
_RANKED = 250
_SUMS = ("loss50", "loss90", "constant50", "constant90", "boosted", "beside", "covered", "log")
_PAIR, _ROW = Struct("<2d"), Struct(f"<2d?{len(_SUMS)}d")
_FIGURES = (
    "tau", "pinball50_ratio", "pinball90_ratio", "boosted50_ratio", "coverage90", "mae", "constant_mae", "bias"
)  # fmt: skip


def _terms(o: Outcome) -> tuple[float, ...]:
    """Return what one outcome adds to each of _SUMS."""
    constant50 = pinball(o.actual, o.constant50, 0.5)
    shadow = o.boosted50 is not None
    return (
        pinball(o.actual, o.p50, 0.5),
        pinball(o.actual, o.p90, 0.9),
        constant50,
        pinball(o.actual, o.constant90, 0.9),
        pinball(o.actual, o.boosted50, 0.5) if o.boosted50 is not None else 0.0,
        constant50 if shadow else 0.0,
        float(o.actual <= o.p90),
        math.log((o.actual + 1.0) / (o.p50 + 1.0)),
    )


def _ratio(part: float, whole: float) -> float | None:
    # Sums from which as much was taken as was added are only nearly zero.
    return max(0.0, part) / whole if whole > 1e-6 else None
