"""How much a count of late requests proves: exact binomial arithmetic, pure Python.

Latency tails are judged by counting violations, not by comparing a point estimate of P99 with the target: the
sample quantile of a hundred values is off by tens of per cent and biased low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

__all__ = [
    "SPRT",
    "Interval",
    "binomial_cdf",
    "proportion_interval",
    "proves_above",
    "proves_below",
    "quantile_ranks",
]


class Interval(NamedTuple):
    """A closed interval; `high` is infinite where the data give no upper bound."""

    low: float
    high: float


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Evaluate the continued fraction of the incomplete beta function by the modified Lentz method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 2000):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1.0) < 1e-14:
            break
    return value


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X ~ Binomial(n, p), as I_{1-p}(n - k, k + 1)."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return _incomplete_beta(n - k, k + 1, 1.0 - p)


def proves_above(late: int, n: int, share: float, confidence: float = 0.95) -> bool:
    """Whether `late` of `n` proves a true late share above `share`: P(X >= late | share) <= 1 - confidence.

    For a share of 1 % at 95 %: 1 of 5, 2 of 35, 3 of 82, 4 of 137.
    """
    return late > 0 and 1.0 - binomial_cdf(late - 1, n, share) <= 1.0 - confidence


def proves_below(late: int, n: int, share: float, confidence: float = 0.95) -> bool:
    """Whether `late` of `n` proves a true late share below `share`: P(X <= late | share) <= 1 - confidence.

    For a share of 1 % at 95 %: 0 of 299, 1 of 473, 2 of 628.
    """
    return n > 0 and binomial_cdf(late, n, share) <= 1.0 - confidence


def proportion_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Return the exact (Clopper and Pearson 1934) two-sided interval for the share behind `k` of `n`."""
    if n == 0:
        return Interval(0.0, 1.0)
    tail = (1.0 - confidence) / 2.0
    low = 0.0 if k == 0 else _solve(lambda p: 1.0 - binomial_cdf(k - 1, n, p) >= tail)
    high = 1.0 if k == n else _solve(lambda p: binomial_cdf(k, n, p) <= tail)
    return Interval(low, high)


def _solve(reached: Callable[[float], bool]) -> float:
    """Return the smallest p in [0, 1] at which the monotone predicate `reached` holds, to 1e-9."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2.0
        if reached(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2.0


@lru_cache(maxsize=4096)
def quantile_ranks(n: int, q: float, confidence: float = 0.95) -> tuple[int, int | None]:
    """Return ranks (1-based) of the order statistics that enclose the `q`-quantile of the population.

    Distribution-free: the number of samples below the quantile is Binomial(n, q). The upper rank is None when even
    the largest of `n` samples is no upper bound (for P99 at 95 % two-sided that is below n = 368), the lower rank is
    0 when the smallest is no lower bound.
    """
    tail = (1.0 - confidence) / 2.0
    low = _first(n, lambda k: binomial_cdf(k, n, q) > tail)
    high = _first(n, lambda k: binomial_cdf(k, n, q) >= 1.0 - tail) + 1
    return low, (high if high <= n else None)


def _first(n: int, holds: Callable[[int], bool]) -> int:
    """Return the smallest k in 0..n for which the monotone predicate holds."""
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


class SPRT:
    """Wald's sequential probability ratio test of a late share: `p0` is fine, `p1` is not.

    Each late request adds ln(p1/p0), each one in time ln((1-p1)/(1-p0)); the test decides when the sum leaves
    [ln(beta/(1-alpha)), ln((1-beta)/alpha)] (Wald 1945). With p0 = 0.5 %, p1 = 2 % and 5 % errors: +1.386 and
    -0.01519 against +-2.944, so three late among few, or 194 clean.
    """

    __slots__ = ("_clean", "_late", "_lower", "_upper", "llr", "n")

    def __init__(self, p0: float = 0.005, p1: float = 0.02, alpha: float = 0.05, beta: float = 0.05) -> None:
        if not 0.0 < p0 < p1 < 1.0:
            raise ValueError(f"the test needs 0 < p0 < p1 < 1, not p0={p0}, p1={p1}")
        self._late = math.log(p1 / p0)
        self._clean = math.log((1.0 - p1) / (1.0 - p0))
        self._upper = math.log((1.0 - beta) / alpha)
        self._lower = math.log(beta / (1.0 - alpha))
        self.llr = 0.0
        self.n = 0

    def add(self, late: bool) -> int:
        """Take one request in. Returns +1 when too many are late, -1 when few enough are, 0 to go on.

        A decision starts the test anew.
        """
        self.llr += self._late if late else self._clean
        self.n += 1
        verdict = 1 if self.llr >= self._upper else -1 if self.llr <= self._lower else 0
        if verdict:
            self.reset()
        return verdict

    def reset(self) -> None:
        """Forget the evidence, because the setpoints it was gathered under are gone."""
        self.llr = 0.0
        self.n = 0
