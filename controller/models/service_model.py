"""How long an upstream call takes as a function of its load: learned online, seconds in, seconds out.

The load variable is the batch size for an upstream that takes whole batches. Two experts watch the same samples: a
plain one that forgets quickly, and one that knows knees and level shifts; the mix follows whichever predicted
better lately.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import deque
from math import exp, log
from typing import Any, Final

from controller.models.residuals import ResidualRing
from controller.models.shift import ShiftDetector

__all__ = ["Expert", "LinearExpert", "ServiceModel", "ShapeLevelExpert"]

_FLOOR_S: Final = 1e-6
_EXCUSED: Final = 5
"""So many calls before a shift was noticed, and after it, were made under a wrong level."""


def _prior_slope(mean_load: float, mean_seconds: float) -> float:
    """Return the slope that is assumed while the load has not varied.

    A quarter of the time is taken as proportional to the load at a load of 1, 60 % at 8, 75 % in the end: batching
    costs little at first, or nobody would do it.
    """
    base = mean_load if mean_load > 1.0 else 1.0
    return 0.75 * base / (base + 2.0) * mean_seconds / base


class Expert(ABC):
    """One way of predicting the service time from the load."""

    def __init__(self, residuals: ResidualRing) -> None:
        self.residuals = residuals

    @abstractmethod
    def predict(self, load: float) -> float:
        """Return the expected service time in seconds; half a second before the first sample."""

    @abstractmethod
    def observe(self, load: float, seconds: float, predicted: float) -> None:
        """Learn from one call, for which `predict(load)` was `predicted`."""

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply every prediction."""


class _Line:
    """Exponentially weighted least squares of y on x, with moments kept instead of samples."""

    __slots__ = ("_forget", "n", "sx", "sxx", "sxy", "sy")

    def __init__(self, forget: float) -> None:
        self._forget = forget
        self.n = self.sx = self.sy = self.sxx = self.sxy = 0.0

    def add(self, x: float, y: float) -> None:
        f = self._forget
        self.n = f * self.n + 1.0
        self.sx = f * self.sx + x
        self.sy = f * self.sy + y
        self.sxx = f * self.sxx + x * x
        self.sxy = f * self.sxy + x * y

    def moments(self) -> tuple[float, float, float, float]:
        """Return mean of x, mean of y, variance of x, covariance."""
        n = self.n
        mx, my = self.sx / n, self.sy / n
        var = self.sxx / n - mx * mx
        return mx, my, var if var > 0.0 else 0.0, self.sxy / n - mx * my

    def scale(self, factor: float) -> None:
        """Multiply every y seen so far."""
        self.sy *= factor
        self.sxy *= factor


class LinearExpert(Expert):
    """S(b) = a + c b by least squares that forgets 3 % a call; quick, steady under noise, blind to knees.

    While the load has not varied, the slope is unidentifiable and a prior stands in.
    """

    def __init__(self, forget: float = 0.97) -> None:
        super().__init__(ResidualRing(100))
        self._line = _Line(forget)
        self._seen = 0

    def predict(self, load: float) -> float:
        """Return the expected service time in seconds; half a second before the first sample."""
        if not self._seen:
            return 0.5
        mx, my, var, cov = self._line.moments()
        slope = _prior_slope(mx, my) if var < 0.001 * mx * mx + 1e-9 else max(0.0, cov / var)
        base, least = my - slope * mx, 0.05 * my
        value = (base if base > least else least) + slope * load
        return value if value > _FLOOR_S else _FLOOR_S

    def observe(self, load: float, seconds: float, predicted: float) -> None:
        """Learn from one call, for which `predict(load)` was `predicted`."""
        if self._seen >= 3:
            self.residuals.add(seconds / predicted)
        self._line.add(load, seconds)
        self._seen += 1

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self._line.scale(factor)


class ShapeLevelExpert(Expert):
    """S(b) = exp(level) * shape(b): shape learned slowly, level quickly, both slower the noisier the upstream.

    The shape is a line (forgetting 0.5 % a call, its slope shrunk towards the prior until the load has varied) times
    the correction of the size bin, shrunk by its sample count, and made monotone over the bins. Two same-sign
    residuals in a row beyond three standard deviations are a level shift: half of it is taken at once.
    """

    EDGES = (1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 48, 64, 96, 128, 192, 256)

    def __init__(self, forget: float = 0.995) -> None:
        super().__init__(ResidualRing(120))
        self._line = _Line(forget)
        self._level = 0.0
        self._speed = 1.0
        self._seen = 0
        self._coefficients: tuple[float, float] | None = None
        self._steps: list[float] = []
        self._shrink = 2.0
        bins = len(self.EDGES) + 1
        self._lowest = bins
        """The first bin that anything was ever counted in."""
        self._bin_n = [0.0] * bins
        self._bin_mean = [0.0] * bins
        self._last_error = 0.0
        self.shifted = False
        """Whether the last call was taken for one at another level."""

    @property
    def level(self) -> float:
        """Log of the present speed relative to the learned shape."""
        return self._level

    def predict(self, load: float) -> float:
        """Return the expected service time in seconds; half a second before the first sample."""
        value = self._shape(load) * self._speed
        return value if value > _FLOOR_S else _FLOOR_S

    def observe(self, load: float, seconds: float, predicted: float) -> None:
        """Learn from one call, for which `predict(load)` was `predicted`."""
        sd = self.residuals.spread()
        noise = max(1.0, (sd / 0.08) ** 2)
        self._shrink = 2.0 * noise
        if self._seen >= 3:
            self._learn_bin(load, seconds, max(1.0, sd / 0.08))
        if self._seen >= 2:
            self._learn_level(log(seconds / predicted), sd, max(0.02, 0.15 / noise))
        self._line.add(load, seconds / self._speed)
        self._seen += 1
        self._coefficients = None
        self._steps.clear()

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self._level += log(factor)
        self._speed = exp(self._level)

    def _learn_bin(self, load: float, seconds: float, slower: float) -> None:
        index = bisect_left(self.EDGES, load)
        if index < self._lowest:
            self._lowest = index
        error = log(seconds / max(_FLOOR_S, self._straight(load) * self._speed))
        n = self._bin_n[index] = min(40.0, self._bin_n[index] * 0.98 + 1.0)
        self._bin_mean[index] += (error - self._bin_mean[index]) / min(n, 8.0 * slower)

    def _learn_level(self, error: float, sd: float, gain: float) -> None:
        self.residuals.add(exp(error))
        self._level += gain * max(-1.0, min(1.0, error))
        last, self._last_error = self._last_error, error
        self.shifted = last * error > 0.0 and len(self.residuals) >= 10 and min(abs(last), abs(error)) > 3.0 * sd
        if self.shifted:
            self._level += 0.25 * (last + error)
            # They were measured against the level before, and would be taken for a tail of the present one.
            self.residuals.drop_newest(2)
        self._speed = exp(self._level)

    def _straight(self, load: float) -> float:
        if self._coefficients is None:
            self._coefficients = self._fit()
        intercept, slope = self._coefficients
        return intercept + slope * load

    def _fit(self) -> tuple[float, float]:
        if not self._seen:
            return 0.5, 0.0
        line = self._line
        mx, my, var, cov = line.moments()
        base = max(mx, 1.0)
        prior = _prior_slope(mx, my)
        trust = min(1.0, var * line.n / (40.0 * base))
        fitted = cov / var if var > 1e-6 else prior
        slope = max(0.02 * my / base, trust * fitted + (1.0 - trust) * prior)
        return max(0.05 * my, my - slope * mx), slope

    def _shape(self, load: float) -> float:
        straight = self._straight(load)
        if self._seen < 3:
            return straight
        own = bisect_left(self.EDGES, load)
        n = self._bin_n[own]
        value = straight * exp(self._bin_mean[own] * n / (n + self._shrink)) if n else straight
        least = self._least(own)
        return value if value > least else least

    def _least(self, own: int) -> float:
        """Return the largest shape of the well-measured bins below `own`, which no larger load undercuts."""
        if own <= self._lowest:
            return 0.0
        steps = self._steps
        if len(steps) <= own:
            # Only as far as somebody asks, for every sample makes all of it void.
            if not steps:
                steps.extend([0.0] * (self._lowest + 1))
            best, shrink, counts = steps[-1], self._shrink, self._bin_n
            for index in range(len(steps) - 1, own):
                n = counts[index]
                if n >= shrink:
                    value = self._straight(self.EDGES[index]) * exp(self._bin_mean[index] * n / (n + shrink))
                    if value > best:
                        best = value
                steps.append(best)
        return steps[own]


class ServiceModel:
    """A mix of two experts that follows the one with the smaller discounted squared log error.

    The plain one must be clearly better (0.6): around a knee both look alike until a burst reaches it.

    `quantile_s` scales the prediction by an empirical quantile of the chosen expert's own ratios. Which quantile is
    learned, too (`late`): a conformal correction that holds the late share at its target whatever the residuals
    look like (after Gibbs and Candes 2021).
    """

    def __init__(self, late_target: float = 0.01, *, theta: float = 0.85) -> None:
        self.late_target = late_target
        self.theta = theta
        self.samples = 0
        self._fast = LinearExpert()
        self._shaped = ShapeLevelExpert()
        self.expert: Expert = self._fast
        """The expert that is being followed."""
        self._errors = [0.0, 0.0]
        self._shift = ShiftDetector()
        self._cache: dict[float, float] = {}
        self._cached_ratio: float | None = None
        self._within_of: tuple[float, float] | None = None
        self._within = 0.0
        """The last answer of `within_s`, and to what."""
        self._settled_at = 0
        """How many calls there must be before lateness counts again."""
        self._thetas: deque[float] = deque([theta], maxlen=_EXCUSED)
        self.last_seconds: float | None = None
        self.last_sample_at: float | None = None

    @property
    def identified(self) -> bool:
        """Whether there is enough to predict from: eight calls, residuals within 60 %."""
        return self.samples >= 8 and self.expert.residuals.spread() <= 0.6

    def _follow(self) -> None:
        """Choose the expert to follow."""
        fast = self.samples < 8 or self._errors[0] < 0.6 * self._errors[1]
        self.expert = self._fast if fast else self._shaped

    def observe(self, load: float, seconds: float, now: float | None = None) -> bool:
        """Learn from one upstream call of `load` that took `seconds`. Says whether the level has shifted."""
        moved = shifted = False
        seconds = max(_FLOOR_S, seconds)
        fast, shaped = self._fast.predict(load), self._shaped.predict(load)
        if self.samples >= 3 and self._judge(log(seconds / fast), log(seconds / shaped)):
            moved = True
            fast, shaped = self._fast.predict(load), self._shaped.predict(load)
        self._fast.observe(load, seconds, fast)
        self._shaped.observe(load, seconds, shaped)
        self.samples += 1
        if self.samples == 8:
            self._follow()
        self.last_seconds = seconds
        self.last_sample_at = now
        if moved or (self.expert is self._shaped and self._shaped.shifted):
            self.excuse()
            shifted = True
        self._thetas.append(self.theta)
        self._forget_cached()
        return shifted

    def excuse(self) -> None:
        """Take back what the calls around a shift do to the quantile: the level was wrong, not the quantile."""
        self.theta = min(self.theta, self._thetas[0])
        self._settled_at = self.samples + _EXCUSED
        self._cached_ratio = None

    def _judge(self, fast: float, shaped: float) -> bool:
        """Score both experts by their log errors.

        When the followed one goes on being grossly wrong in one direction, both are moved to the new level; returns
        whether they were.
        """
        self._errors[0] = 0.93 * self._errors[0] + fast * fast
        self._errors[1] = 0.93 * self._errors[1] + shaped * shaped
        self._follow()
        error = fast if self.expert is self._fast else shaped
        shift, run = self._shift.add(error, self.expert.residuals.log_spread())
        if not run:
            return False
        # The two learned differently from the first wrong calls; let them agree about the next one.
        moves: tuple[tuple[Expert, float], ...] = ((self._fast, fast), (self._shaped, shaped))
        for expert, own in moves:
            expert.scale(exp(own - error + shift))
            expert.residuals.drop_newest(run - 1)
        return True

    def _forget_cached(self) -> None:
        self._cache.clear()
        self._cached_ratio = self._within_of = None

    def late(self, share: float, weight: float = 1.0) -> None:
        """Correct the quantile by the share of late requests in a call; `weight` is its part of a whole call."""
        if self.samples < self._settled_at and share > self.late_target:
            return
        self.theta = min(0.99, max(0.5, self.theta + 0.06 * weight * (share - self.late_target)))
        self._cached_ratio = None

    def predict(self, load: float) -> float:
        """Return the expected service time in seconds."""
        value = self._cache.get(load)
        if value is None:
            value = self._cache[load] = self.expert.predict(load)
        return value

    def within_s(self, load: float, q: float) -> float:
        """Return a service time that a share `q` of the calls stay within, in seconds."""
        # Who is let in is asked about twice, on arrival and when it is sent.
        if (load, q) != self._within_of:
            self._within = self.predict(load) * self.expert.residuals.quantile(q)
            self._within_of = load, q
        return self._within

    def quantile_s(self, load: float) -> float:
        """Return a service time that about `theta` of the calls stay within, in seconds."""
        ratio = self._cached_ratio
        if ratio is None:
            ratio = self._cached_ratio = self.expert.residuals.quantile(self.theta)
        return self.predict(load) * ratio

    def remaining_s(self, load: float, elapsed_s: float) -> float:
        """Return how long a call of `load` that has run for `elapsed_s` will still take on average, in seconds.

        The mean, not a quantile: a request that queues behind the call is judged again when the call ends.
        """
        usual = self.predict(load)
        if len(self.expert.residuals) < 8 and elapsed_s < usual:
            return usual - elapsed_s
        return usual * self.expert.residuals.mean_excess(elapsed_s / usual)

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        return {
            "samples": self.samples,
            "identified": self.identified,
            "expert": "linear" if self.expert is self._fast else "shape and level",
            "theta": self.theta,
            "level": self._shaped.level,
            "residual_sd": self.expert.residuals.spread(),
            "predicted_ms": {str(b): 1000.0 * self.predict(b) for b in (1, 2, 4, 8, 16, 32)} if self.samples else {},
        }
