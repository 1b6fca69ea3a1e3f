"""Scores of predictions, and what one would use without a predictor."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.bars import Bar
from controller.predictor.calibration import kendall_tau, pinball


class Point(NamedTuple):
    """One measured request."""

    group: str
    actual: float
    p50: float
    p90: float
    constant50: float
    constant90: float


class Scores(NamedTuple):
    """What a table row shows."""

    tau: float
    pin50: float
    pin90: float
    coverage: float
    mae: float


def scores(points: Sequence[Point]) -> Scores:
    """Score predictions; losses relative to the constant's, tau within a group, averaged over groups."""
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.group].append(point)
    taus = [kendall_tau([p.p50 for p in g], [p.actual for p in g]) for g in groups.values()]
    loss50 = sum(pinball(p.actual, p.p50, 0.5) for p in points) / sum(
        pinball(p.actual, p.constant50, 0.5) for p in points
    )
    loss90 = sum(pinball(p.actual, p.p90, 0.9) for p in points) / sum(
        pinball(p.actual, p.constant90, 0.9) for p in points
    )
    held = sum(p.actual <= p.p90 for p in points) / len(points)
    # |error| is twice the pinball loss at 0.5, so the MAE ratio is the same number; it is shown in tokens instead
    return Scores(
        statistics.mean(taus), loss50, loss90, held, sum(abs(p.actual - p.p50) for p in points) / len(points)
    )


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


Say = Callable[[float], tuple[float, float]]
"""From the input length to (p50, p90), all in tokens."""


def _constant(seen: Sequence[float], _: random.Random) -> Say:
    said = quantile(seen, 0.5), quantile(seen, 0.9)
    return lambda size: said


def _histogram(seen: Sequence[float], rng: random.Random) -> Say:
    bins = [int(math.log2(value + 1)) for value in seen]
    high = quantile(seen, 0.9)
    return lambda size: (1.5 * 2.0 ** rng.choice(bins) - 1, high)


RIVALS: tuple[tuple[str, Callable[[Sequence[float], random.Random], Say]], ...] = (
    ("max_tokens (1024)", lambda seen, rng: lambda size: (1024.0, 1024.0)),
    ("1.5 x input", lambda seen, rng: lambda size: (1.5 * size, 3.0 * size)),
    ("log2 histogram draw", _histogram),
    ("per-model constant", _constant),
)
"""What one would use without a predictor, made from the model's answers so far."""


class Table:
    """Rows of scores under a heading, printed as they come."""

    def __init__(self, title: str) -> None:
        print(f"\n{title}")
        print(f"  {'':<34}{'tau':>8}{'pin.5':>8}{'pin.9':>8}{'cover':>8}{'MAE':>9}")

    def row(self, name: str, runs: Sequence[Scores]) -> Scores:
        mean = Scores(*(statistics.mean(column) for column in zip(*runs, strict=True)))
        spread = f"  tau {min(r.tau for r in runs):.3f}..{max(r.tau for r in runs):.3f}" if len(runs) > 1 else ""
        figures = "".join(f"{value:>8.3f}" for value in mean[:4])
        print(f"  {name:<34}{figures}{mean.mae:>9.1f}{spread}", flush=True)
        return mean


def beats(title: str, best: Scores, rivals: dict[str, Scores]) -> list[Bar]:
    """Return a bar for each rival: the predictor's loss at p50 and p90 over its, the worse of the two, below 1."""
    return [
        Bar.below(f"{title}: losses over those of {name}", max(best.pin50 / r.pin50, best.pin90 / r.pin90), 1.0)
        for name, r in rivals.items()
    ]
