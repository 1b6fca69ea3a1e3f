"""The predictor's own live report: is it worth listening to, measured on what it said before it knew."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
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
    order = sorted(range(n), key=xs.__getitem__)
    seen: list[float] = []
    score = untied_x = 0
    start = 0
    while start < n:  # one group of equal x at a time: its members are not compared with each other
        end = start
        while end < n and xs[order[end]] == xs[order[start]]:
            end += 1
        for index in order[start:end]:
            below, upto = bisect_left(seen, ys[index]), bisect_right(seen, ys[index])
            score += below - (len(seen) - upto)
        untied_x += (end - start) * start
        for index in order[start:end]:
            insort(seen, ys[index])
        start = end
    ties_y = sum(
        bisect_right(seen, value) - bisect_left(seen, value) - 1 for value in ys
    )  # counts every tied pair twice
    untied_y = n * (n - 1) // 2 - ties_y // 2
    return score / math.sqrt(untied_x * untied_y) if untied_x and untied_y else 0.0


class Outcome(NamedTuple):
    """One prediction beside what came of it, in tokens."""

    p50: float
    p90: float
    constant50: float
    constant90: float
    boosted50: float | None
    actual: float


class Calibration:
    """Rolling figures over the newest `window` outcomes, per model and over all. A report is cached until it ages."""

    def __init__(self, *, window: int = 500, capacity: int = 64, refresh: int = 25) -> None:
        self._window = window
        self._capacity = capacity
        self._refresh = refresh
        self._outcomes: OrderedDict[str, deque[Outcome]] = OrderedDict()
        self._reports: dict[str, tuple[int, dict[str, Any]]] = {}
        self._seen: dict[str, int] = {}

    def observe(self, model: str, outcome: Outcome) -> None:
        """Take in one outcome."""
        for name in (model, ""):
            ring = self._outcomes.get(name)
            if ring is None:
                ring = self._outcomes[name] = deque(maxlen=self._window)
                if len(self._outcomes) > self._capacity:
                    self._drop_oldest()
            else:
                self._outcomes.move_to_end(name)
            ring.append(outcome)
            self._seen[name] = self._seen.get(name, 0) + 1

    def models(self) -> list[str]:
        """Return the models with outcomes, least recently seen first."""
        return [name for name in self._outcomes if name]

    def report(self, model: str = "") -> dict[str, Any]:
        """Return tau, pinball ratios to the constant, coverage and errors of `model`, "" for all together.

        tau within one model says what ordering gets from the predictor; over all models it also holds the
        difference between the models. `None` below 20 outcomes.
        """
        ring = self._outcomes.get(model, ())
        seen = self._seen.get(model, 0)
        at, cached = self._reports.get(model, (-self._refresh, {}))
        if cached and seen - at < self._refresh:
            return cached
        report = _report(ring)
        self._reports[model] = (seen, report)
        return report

    def _drop_oldest(self) -> None:
        oldest = next(name for name in self._outcomes if name)
        for table in (self._outcomes, self._reports, self._seen):
            table.pop(oldest, None)


def _report(ring: Sequence[Outcome] | deque[Outcome]) -> dict[str, Any]:
    n = len(ring)
    empty = dict.fromkeys(
        ("tau", "pinball50_ratio", "pinball90_ratio", "boosted50_ratio", "coverage90", "mae", "constant_mae", "bias")
    )
    if n < 20:
        return {"n": n, **empty}
    shadow = [o for o in ring if o.boosted50 is not None]
    errors = [abs(o.p50 - o.actual) for o in ring]
    return {
        "n": n,
        "tau": kendall_tau([o.p50 for o in ring], [o.actual for o in ring]),
        "pinball50_ratio": _ratio(ring, "p50", "constant50", 0.5),
        "pinball90_ratio": _ratio(ring, "p90", "constant90", 0.9),
        "boosted50_ratio": _ratio(shadow, "boosted50", "constant50", 0.5) if len(shadow) >= 20 else None,
        "coverage90": sum(o.actual <= o.p90 for o in ring) / n,
        "mae": sum(errors) / n,
        "constant_mae": sum(abs(o.constant50 - o.actual) for o in ring) / n,
        "bias": sum(math.log((o.actual + 1.0) / (o.p50 + 1.0)) for o in ring) / n,
    }


def _ratio(ring: Sequence[Outcome] | deque[Outcome], name: str, constant: str, q: float) -> float | None:
    reference = sum(pinball(o.actual, getattr(o, constant), q) for o in ring)
    return sum(pinball(o.actual, getattr(o, name), q) for o in ring) / reference if reference > 0 else None
