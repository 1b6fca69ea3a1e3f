"""Named days: arrivals, speed of the upstream, target. What the laws are compared on."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.simulator.arrivals import (
    Request,
    chat_lengths,
    gamma_arrivals,
    mmpp_arrivals,
    poisson_arrivals,
    requests_at,
    speed_up,
)
from controller.simulator.plants import BatchPlant, Faults, always

__all__ = ["HORIZON_S", "Scenario", "design_scenarios", "fresh_scenarios", "replay"]

HORIZON_S = 900.0
Arrivals = Callable[[random.Random], Sequence[float]]


@dataclass(frozen=True)
class Scenario:
    """One cell of the comparison."""

    name: str
    slo_s: float
    arrivals: Arrivals
    slow: Callable[[float], float] = always
    phases: tuple[float, ...] = ()
    """When load or speed change for good, in seconds."""
    knee: bool = False
    random_lengths: bool = False
    horizon_s: float = HORIZON_S

    @property
    def label(self) -> str:
        """Name, target and variant in one word."""
        variant = ", knee" if self.knee else ", random lengths" if self.random_lengths else ""
        return f"{self.name} @ {self.slo_s:g} s{variant}"

    def requests(self, seed: int) -> list[Request]:
        """Draw the requests of one day; equal seeds give equal days for every law."""
        rng = random.Random(1000 + seed)
        times = [time for time in self.arrivals(rng) if time < self.horizon_s]
        outputs = chat_lengths(len(times), 100.0, rng) if self.random_lengths else None
        return requests_at(times, outputs=outputs)

    def plant(self) -> BatchPlant:
        """Return the upstream of that day."""
        return BatchPlant(knee_at=16 if self.knee else None, faults=Faults(slow=self.slow))


def _between(start: float, end: float, inside: float, outside: float) -> Callable[[float], float]:
    return lambda now: inside if start <= now < end else outside


def _poisson(rate: Callable[[float], float], highest: float, horizon_s: float) -> Arrivals:
    return lambda rng: poisson_arrivals(rate, highest, horizon_s, rng)


def design_scenarios(horizon_s: float = HORIZON_S) -> list[Scenario]:
    """Return the 35 cells: seven days at 6, 4 and 2.5 s, and at 6 s with a knee and with random lengths.

    Loads fall with the target (to 0.75 and 0.55), because less of the capacity is usable.
    """
    cells: list[Scenario] = []
    for slo_s, scale, slower in ((6.0, 1.0, 1.6), (4.0, 0.75, 1.3), (2.5, 0.55, 1.3)):
        cells += _seven(slo_s, scale, slower, horizon_s)
    for base in _seven(6.0, 1.0, 1.6, horizon_s):
        cells.append(replace(base, knee=True))
    for base in _seven(6.0, 1.0, 1.6, horizon_s):
        cells.append(replace(base, random_lengths=True))
    return cells


def _seven(slo_s: float, k: float, slower: float, h: float) -> list[Scenario]:
    third, two_thirds, half = h / 3.0, 2.0 * h / 3.0, h / 2.0
    steps = (third, two_thirds)
    return [
        Scenario("steady 46 %", slo_s, _poisson(lambda _: 3.0 * k, 3.0 * k, h), horizon_s=h),
        Scenario("steady 70 %", slo_s, _poisson(lambda _: 4.5 * k, 4.5 * k, h), horizon_s=h),
        Scenario(
            "step",
            slo_s,
            _poisson(_between(third, two_thirds, 5.0 * k, 2.0 * k), 5.0 * k, h),
            phases=steps,
            horizon_s=h,
        ),
        Scenario(
            "overload",
            slo_s,
            _poisson(_between(third, two_thirds, 8.0 * k, 3.0 * k), 8.0 * k, h),
            phases=steps,
            horizon_s=h,
        ),
        Scenario("bursts", slo_s, lambda rng: mmpp_arrivals((1.0 * k, 9.0 * k), (20.0, 10.0), h, rng), horizon_s=h),
        Scenario(
            "slow-down",
            slo_s,
            _poisson(lambda _: 3.5 * k, 3.5 * k, h),
            slow=_between(third, two_thirds, slower, 1.0),
            phases=steps,
            horizon_s=h,
        ),
        Scenario(
            "speed-up",
            slo_s,
            _poisson(lambda _: 6.0 * k, 6.0 * k, h),
            slow=_between(half, h, 0.5, 1.0),
            phases=(half,),
            horizon_s=h,
        ),
    ]


def fresh_scenarios(horizon_s: float = HORIZON_S) -> list[Scenario]:
    """Return days that no constant was tuned on, at a target of 5 s, with fixed and with random lengths."""
    h = horizon_s
    slo_s = 5.0

    def spikes(now: float) -> float:
        return 2.0 if now % 200.0 < 40.0 else 1.0

    def sawtooth(now: float) -> float:
        return 1.0 + 6.0 * (now % 150.0) / 150.0

    def waves(now: float) -> float:
        return 4.0 + 3.0 * math.sin(now / 40.0)

    days = [
        Scenario("ramp", slo_s, _poisson(lambda now: 1.0 + 6.0 * now / h, 7.0, h), horizon_s=h),
        Scenario("sawtooth", slo_s, _poisson(sawtooth, 7.0, h), horizon_s=h),
        Scenario("waves", slo_s, _poisson(waves, 7.0, h), horizon_s=h),
        Scenario("slow spikes 2x", slo_s, _poisson(lambda _: 3.5, 3.5, h), slow=spikes, horizon_s=h),
        Scenario("drift", slo_s, _poisson(lambda _: 4.0, 4.0, h), slow=lambda now: 0.7 + 0.9 * now / h, horizon_s=h),
        Scenario("gamma cv 3.6", slo_s, lambda rng: gamma_arrivals(4.0, 3.6, h, rng), horizon_s=h),
        Scenario("gamma cv 1.2", slo_s, lambda rng: gamma_arrivals(5.0, 1.2, h, rng), horizon_s=h),
        Scenario("short bursts", slo_s, lambda rng: mmpp_arrivals((2.0, 20.0), (15.0, 3.0), h, rng), horizon_s=h),
    ]
    return days + [replace(day, random_lengths=True) for day in days]


def replay(
    name: str, trace: Sequence[Request], rate: float, slo_s: float = 5.0, horizon_s: float = HORIZON_S
) -> Scenario:
    """Return a day with a trace's arrivals, sped up or slowed down to `rate` a second on average."""
    span = max(request.arrival for request in trace) or 1.0
    factor = rate * span / len(trace)
    times = [request.arrival for request in speed_up(trace, factor, horizon_s)]
    return Scenario(f"replay {name}", slo_s, lambda _: times, horizon_s=horizon_s)
