"""How an upstream that batches by itself answers to concurrency: first token, token pace, whole request."""

from __future__ import annotations

from typing import Any

from controller.observation import Observation
from controller.residuals import ResidualRing
from controller.service_model import ServiceModel

__all__ = ["ConcurrencyModel", "FirstTokenModel"]

_WARM = 64
_SPACING_S = 0.02
"""Once warm, fifty samples a second say as much as five hundred, at a tenth of the work."""


class FirstTokenModel:
    """Seconds from dispatch to first token: a + p * prompt_tokens + c * concurrency, forgetting 1 % a request.

    Weighted least squares on relative error (each row is divided by its own measurement), by a small ridge
    regression solved when asked; coefficients are kept from being negative.
    """

    def __init__(self, forget: float = 0.99) -> None:
        self.residuals = ResidualRing(120)
        self.samples = 0
        self._forget = forget
        self._xx = [[0.0] * 3 for _ in range(3)]
        self._xy = [0.0] * 3
        self._coefficients: tuple[float, float, float] | None = None

    def observe(self, prompt_tokens: int, concurrency: int, seconds: float) -> None:
        """Learn from one streamed request."""
        seconds = max(1e-6, seconds)
        if self.samples >= 3:
            self.residuals.add(seconds / self.predict(prompt_tokens, concurrency))
        row = (1.0, float(prompt_tokens), float(concurrency))
        weight = 1.0 / (seconds * seconds)
        for i in range(3):
            for j in range(3):
                self._xx[i][j] = self._forget * self._xx[i][j] + weight * row[i] * row[j]
            self._xy[i] = self._forget * self._xy[i] + weight * row[i] * seconds
        self.samples += 1
        if self.samples < 32 or not self.samples % 8:
            self._coefficients = None

    def predict(self, prompt_tokens: int, concurrency: int) -> float:
        """Return the expected seconds to the first token; 0.1 before the first sample."""
        if not self.samples:
            return 0.1
        if self._coefficients is None:
            self._coefficients = self._solve()
        a, p, c = self._coefficients
        return max(1e-6, a + p * prompt_tokens + c * concurrency)

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self._xy = [value / factor for value in self._xy]
        self._xx = [[value / (factor * factor) for value in row] for row in self._xx]
        self._coefficients = None

    def _solve(self) -> tuple[float, float, float]:
        free = [0, 1, 2]
        while True:
            solution = _ridge(self._xx, self._xy, free)
            worst = min(free, key=lambda i: solution[i])
            if solution[worst] >= 0.0 or len(free) == 1:
                return solution[0], solution[1], solution[2]
            free.remove(worst)


def _ridge(xx: list[list[float]], xy: list[float], free: list[int]) -> list[float]:
    """Solve the normal equations over the `free` coefficients by Gauss elimination; the others are 0."""
    rows = [[xx[i][j] * (1.0 + 1e-4 * (i == j)) for j in free] + [xy[i]] for i in free]
    size = len(free)
    for k in range(size):
        pivot = max(range(k, size), key=lambda r: abs(rows[r][k]))
        rows[k], rows[pivot] = rows[pivot], rows[k]
        if abs(rows[k][k]) < 1e-12:
            continue
        for r in range(size):
            if r != k:
                factor = rows[r][k] / rows[k][k]
                rows[r] = [value - factor * top for value, top in zip(rows[r], rows[k], strict=True)]
    out = [0.0, 0.0, 0.0]
    for k, i in enumerate(free):
        out[i] = rows[k][size] / rows[k][k] if abs(rows[k][k]) >= 1e-12 else 0.0
    return out


class ConcurrencyModel:
    """Three models over concurrency: seconds to the first token, seconds a token, seconds a request.

    The first two need streamed answers with usage; the third works for any upstream, and is what everything falls
    back to.
    """

    def __init__(self, late_target: float = 0.01) -> None:
        self.first = FirstTokenModel()
        self.pace = ServiceModel(late_target)
        self.whole = ServiceModel(late_target)
        self.theta = 0.85
        self.late_target = late_target
        self.mean_output_tokens = 0.0
        self.samples = 0
        self.last_sample_at: float | None = None

    @property
    def identified(self) -> bool:
        """Whether there is enough to predict from."""
        return self.samples >= 8

    def observe(self, obs: Observation, concurrency: int) -> None:
        """Learn from one served request that ran beside `concurrency` - 1 others."""
        if obs.dispatched is None:
            return
        if self.samples >= _WARM and self.last_sample_at is not None and obs.done - self.last_sample_at < _SPACING_S:
            return
        self.samples += 1
        self.last_sample_at = obs.done
        self.whole.observe(concurrency, obs.done - obs.dispatched)
        if obs.streamed and obs.first_byte is not None:
            self.first.observe(obs.prompt_tokens, concurrency, obs.first_byte - obs.dispatched)
            if (pace := obs.tpot_s) is not None:
                self.pace.observe(concurrency, pace)
        if obs.output_tokens:
            gain = max(0.02, 1.0 / self.samples)
            self.mean_output_tokens += gain * (obs.output_tokens - self.mean_output_tokens)

    def late(self, late: bool) -> None:
        """Correct the quantile by one finished request."""
        self.theta = min(0.99, max(0.5, self.theta + 0.02 * (float(late) - self.late_target)))

    def first_s(self, prompt_tokens: int, concurrency: int) -> float:
        """Return a time to first token after dispatch that about `theta` of the requests stay within, in seconds."""
        if self.first.samples < 3:
            return 0.0
        return self.first.predict(prompt_tokens, concurrency) * self.first.residuals.quantile(self.theta)

    def service_s(self, prompt_tokens: int, output_tokens: float | None, concurrency: int) -> float:
        """Return a service time that about `theta` of such requests stay within, in seconds."""
        if output_tokens is not None and self.first.samples >= 8 and self.pace.samples >= 8:
            pace = self.pace.predict(concurrency) * self.pace.expert.residuals.quantile(self.theta)
            return self.first_s(prompt_tokens, concurrency) + pace * max(0.0, output_tokens - 1.0)
        return self.whole.predict(concurrency) * self.whole.expert.residuals.quantile(self.theta)

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self.whole.scale(factor)
        self.pace.scale(factor)
        self.first.scale(factor)

    def drain_rate(self, concurrency: int) -> float:
        """Return departures a second while `concurrency` requests run (Little's law)."""
        return concurrency / max(1e-6, self.whole.predict(concurrency))

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        shown = {
            "samples": self.samples,
            "identified": self.identified,
            "theta": self.theta,
            "mean_output_tokens": self.mean_output_tokens,
            "whole": self.whole.as_dict(),
        }
        if self.pace.samples:
            shown["pace"] = self.pace.as_dict()
        if self.first.samples:
            shown["first_ms"] = {
                f"{prompt} tokens": 1000.0 * self.first.predict(prompt, 1) for prompt in (128, 512, 2048)
            }
        return shown
