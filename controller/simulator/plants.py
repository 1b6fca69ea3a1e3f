"""Upstreams that exist only in virtual time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controller.simulator.arrivals import Request
from controller.simulator.profile import PUBLISHED, Profile, interpolate

__all__ = ["BatchPlant", "Faults", "TablePlant", "always"]


def always(_: float) -> float:
    """Return 1: the upstream keeps its speed."""
    return 1.0


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong, and when. Spans are (from, to) in seconds."""

    slow: Callable[[float], float] = always
    """Factor on every service time, by the time of dispatch."""
    failing: tuple[tuple[float, float], ...] = ()
    """The upstream answers at once with an error."""
    frozen_metrics: tuple[tuple[float, float], ...] = ()
    """Ticks see the load as it was when the span began."""

    def fails(self, now: float) -> bool:
        """Whether the upstream is failing at `now`."""
        return any(start <= now < end for start, end in self.failing)

    def frozen(self, now: float) -> bool:
        """Whether metrics stand still at `now`."""
        return any(start <= now < end for start, end in self.frozen_metrics)


@dataclass
class BatchPlant:
    """An upstream that takes one batch at a time and answers all of it at its end.

    S(b) = prefill(b) + decode(b) * longest output of the batch, times lognormal noise, with stragglers. Above
    `knee_at` everything gets `knee_slope` slower for each further item.
    """

    profile: Profile = PUBLISHED
    noise: float = 0.05
    straggler_share: float = 0.01
    straggler_factor: float = 1.3
    knee_at: int | None = None
    knee_slope: float = 0.12
    faults: Faults = field(default_factory=Faults)

    def service_s(self, batch: Sequence[Request], now: float, rng: random.Random) -> float:
        """Return how long the upstream works on `batch`, dispatched at `now`."""
        size = len(batch)
        prompt = max(request.prompt_tokens for request in batch)
        longest = max(request.output_tokens for request in batch)
        seconds = self.profile.prefill_s(size, prompt) + self.profile.decode_s(size) * longest
        if self.knee_at is not None and size > self.knee_at:
            seconds *= 1.0 + self.knee_slope * (size - self.knee_at)
        return seconds * self.faults.slow(now) * self._luck(rng)

    def _luck(self, rng: random.Random) -> float:
        # Both draws are always made, so that two laws that send equally many batches meet the same luck.
        luck, straggles = math.exp(rng.gauss(0.0, self.noise)), rng.random() < self.straggler_share
        return luck * (self.straggler_factor if straggles else 1.0)


@dataclass
class TablePlant:
    """A batch plant fitted from observations: mean service time by batch size, and the residuals around it."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    residuals: tuple[float, ...] = (1.0,)
    faults: Faults = field(default_factory=Faults)

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, float]]) -> TablePlant:
        """Fit from (batch size, service seconds) of at least ten calls.

        Sizes that would undercut smaller ones are pooled with them. Raises ValueError below ten.
        """
        if len(samples) < 10:
            raise ValueError(f"a plant is fitted from at least ten calls, not {len(samples)}")
        by_size: dict[int, list[float]] = {}
        for size, seconds in samples:
            by_size.setdefault(size, []).append(seconds)
        sizes = sorted(by_size)
        table = _smooth(sizes, by_size)
        residuals = tuple(seconds / interpolate(sizes, table, size) for size, seconds in samples)
        if len(sizes) == 1:
            sizes, table = [sizes[0], 2 * sizes[0]], [table[0], 2.0 * table[0]]
        return cls(tuple(map(float, sizes)), tuple(table), residuals)

    def service_s(self, batch: Sequence[Request], now: float, rng: random.Random) -> float:
        """Return how long the upstream works on `batch`, dispatched at `now`."""
        usual = interpolate(self.sizes, self.seconds, len(batch))
        return usual * rng.choice(self.residuals) * self.faults.slow(now)


def _smooth(sizes: Sequence[int], by_size: Mapping[int, Sequence[float]]) -> list[float]:
    """Return monotone means: pool adjacent violators, weighted by counts (Ayer et al. 1955)."""
    blocks: list[list[float]] = []
    for size in sizes:
        values = by_size[size]
        blocks.append([sum(values) / len(values), float(len(values)), 1.0])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, weight, width = blocks.pop()
            last = blocks[-1]
            total = last[1] + weight
            blocks[-1] = [(last[0] * last[1] + mean * weight) / total, total, last[2] + width]
    return [mean for mean, _, width in blocks for _ in range(int(width))]
