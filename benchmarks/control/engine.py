"""Bars 4 and 7: an engine that batches by itself; gating and fairness."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.bars import Bar
from controller.observation import Result
from controller.simulator.arrivals import (
    Request,
    chat_lengths,
    gamma_arrivals,
    read_trace,
    speed_up,
)
from controller.simulator.engine import EnginePlant
from controller.simulator.gate import simulate_gate
from controller.simulator.profile import Profile
from controller.simulator.record import Record
from controller.simulator.run import LawSpec, play_engine
from controller.slo import SLO
from policies.registry import create_policy

MODERN = Profile((1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0), (45.0,) * 7, (19.1, 19.6, 20.0, 20.4, 23.0, 30.0, 46.0))
"""A token's time on a large accelerator hardly grows with company: measured 19.1 to 20.4 ms from 1 to 32."""


@dataclass(frozen=True)
class Day:
    """Traffic in front of an engine that runs out of memory."""

    name: str
    requests: Callable[[float], Sequence[Request]]
    plant: EnginePlant
    slo: SLO
    sizes: tuple[int, ...]


def days(data: Path | None) -> list[Day]:
    """Return the three days: from recorded traffic when `data` is given, from look-alikes otherwise."""
    return [
        Day(
            "azure2023_conv" if data else "like azure2023_conv",
            lambda h: _replay(data, "azure2023_conv", 7.0, h) if data else _like(h, 6.5, 1.1, 6.8, 0.75, 211.0, 1),
            EnginePlant(profile=MODERN, prefill_token_s=80e-6, kv_tokens=60_000),
            SLO(ttft_s=3.0, tpot_s=0.06),
            (24, 32, 36, 40, 44, 48, 56, 64),
        ),
        Day(
            "mooncake_conversation" if data else "like mooncake_conversation",
            lambda h: (
                _replay(data, "mooncake_conversation", 3.0, h) if data else _like(h, 2.7, 1.5, 8.6, 1.2, 340.0, 2)
            ),
            EnginePlant(profile=MODERN, prefill_token_s=20e-6, chunk_tokens=2048, kv_tokens=400_000),
            SLO(ttft_s=6.0, tpot_s=0.08),
            (12, 16, 20, 24, 28, 32, 40),
        ),
        Day(
            "servegen m-small" if data else "like servegen m-small",
            lambda h: _like(h, 9.0, _servegen_cv(data), 5.8, 1.0, 200.0, 3),
            EnginePlant(profile=MODERN, prefill_token_s=60e-6, kv_tokens=40_000),
            SLO(ttft_s=3.0, tpot_s=0.12),
            (32, 40, 48, 56, 64, 80),
        ),
    ]


def _replay(data: Path | None, name: str, rate: float, horizon_s: float) -> list[Request]:
    assert data is not None
    trace = read_trace(data / f"{name}.csv.gz")
    factor = rate * trace[-1].arrival / len(trace)
    # A prompt must fit the simulated engine with room to spare.
    return [
        Request(r.arrival, min(60_000, r.prompt_tokens), r.output_tokens) for r in speed_up(trace, factor, horizon_s)
    ]


def _like(
    horizon_s: float, rate: float, cv: float, prompt_mu: float, prompt_sigma: float, output_mean: float, seed: int
) -> list[Request]:
    rng = random.Random(seed)
    times = gamma_arrivals(rate, cv, horizon_s, rng)
    outputs = chat_lengths(len(times), output_mean, rng)
    prompts = [min(60_000, max(10, int(rng.lognormvariate(prompt_mu, prompt_sigma)))) for _ in times]
    return [Request(t, p, o) for t, p, o in zip(times, prompts, outputs, strict=True)]


def _servegen_cv(data: Path | None) -> float:
    """Return the median inter-arrival CV of the client windows, weighted by rate; 2.3 without the data."""
    path = None if data is None else data / "servegen_m_small_arrivals.csv.gz"
    if path is None or not path.exists():
        return 2.3
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = sorted((float(row["cv"]), float(row["rate_rps"])) for row in csv.DictReader(lines) if row["cv"])
    half = sum(rate for _, rate in rows) / 2.0
    for cv, rate in rows:
        half -= rate
        if half <= 0.0:
            return min(4.0, cv)
    return 2.3


def gate_bars(data: Path | None, horizon_s: float, names: int, seeds: Sequence[int], *, every: int = 1) -> list[Bar]:
    """Bar 4: concurrency under ttft and tpot targets against the best fixed limit, and the ungated engine.

    Of the fixed limits every one is tried, or one in `every`.
    """
    print(f"{'engine day':28} best fixed limit | deadline in % of it, late, refused or shed, preemptions | ungated")
    worst, gain = float("inf"), float("inf")
    for day in days(data)[:names]:
        requests = day.requests(horizon_s)

        def goodput(law: LawSpec, day: Day = day, requests: Sequence[Request] = requests) -> list[Record]:
            return [play_engine(law, requests, day.plant, day.slo, horizon_s=horizon_s, seed=seed) for seed in seeds]

        fixed = {
            size: fmean(r.figures().goodput for r in goodput(LawSpec("fixed", size=size, highest=256)))
            for size in day.sizes[::every]
        }
        best = max(fixed, key=lambda size: fixed[size])
        ours = goodput(LawSpec("deadline", highest=256))
        free = goodput(LawSpec("fixed", size=256, highest=256, options={"admission": False}))
        mean = fmean(record.figures().goodput for record in ours)
        ungated = fmean(record.figures().goodput for record in free)
        worst, gain = min(worst, mean / fixed[best]), min(gain, mean / ungated)
        figures = [record.figures() for record in ours]
        print(
            f"{day.name:28} {fixed[best]:.3f}/s at {best} | {100 * mean / fixed[best]:.1f} "
            f"({100 * min(f.goodput for f in figures) / fixed[best]:.0f}-"
            f"{100 * max(f.goodput for f in figures) / fixed[best]:.0f}) "
            f"{100 * fmean(f.late_share for f in figures):.1f}% "
            f"{100 * fmean(f.refused_share + f.shed_share for f in figures):.0f}% "
            f"{sum(record.preemptions for record in ours)} | {ungated:.3f}/s",
            flush=True,
        )
    return [
        Bar.above("gate: deadline / best fixed limit, worst day", worst, 0.97),
        Bar.above("gate: deadline / ungated engine, worst day", gain, 1.15),
    ]


def fairness_bars(horizon_s: float) -> list[Bar]:
    """Bar 7: two backlogged tenants with sizes of 10:1, and ten tenants, under the `fair` policy."""
    law = LawSpec("fixed", size=8, highest=8, options={"admission": False})
    plant = EnginePlant(kv_tokens=1_000_000, noise=0.0)

    def served(requests: Sequence[Request]) -> dict[str, float]:
        record = simulate_gate(
            requests,
            law.controller(SLO(e2e_s=1e6), "gate"),
            plant,
            horizon_s=horizon_s,
            seed=0,
            policy=create_policy("fair"),
            drain_s=0.0,
        )
        costs: dict[str, float] = {}
        for fate in record.fates:
            if fate.result is Result.OK and fate.done <= horizon_s:
                costs[fate.tenant] = costs.get(fate.tenant, 0.0) + fate.prompt_tokens + fate.output_tokens
        return costs

    backlog = int(12 * horizon_s)
    two = [Request(0.0, 500, 500, 500.0, "large") for _ in range(backlog // 4)]
    two += [Request(0.0, 50, 50, 50.0, "small") for _ in range(backlog)]
    costs = served(two)
    in_flight = 8 * 1000.0
    rng = random.Random(7)
    sizes = [40 * (1 + index) for index in range(10)]
    ten = [
        Request(0.0, size, max(1, int(size * rng.uniform(0.5, 1.5))), float(size), f"t{index}")
        for index, size in enumerate(sizes)
        for _ in range(int(60 * horizon_s / (0.2 * size)))
    ]
    shares = list(served(ten).values())
    jain = sum(shares) ** 2 / (len(sizes) * sum(share * share for share in shares))
    print(f"fairness: two tenants at 10:1 got {costs} tokens; ten tenants got {[round(share) for share in shares]}")
    return [
        Bar.below(
            "fair: difference over the largest cost in flight", abs(costs["large"] - costs["small"]) / in_flight, 2.0
        ),
        Bar.above("fair: Jain's index over ten tenants", jain, 0.98),
    ]
