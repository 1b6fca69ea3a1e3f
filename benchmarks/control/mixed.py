"""Several promises in one queue: batches chosen by Moore-Hodgson against batches in the order of service."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.bars import Bar
from controller.dispatch.merge_upstream import MergeUpstream
from controller.loop import PoolController
from controller.setpoints import Bounds, Setpoints
from controller.simulator.merge import simulate_merge
from controller.simulator.record import Record
from controller.simulator.scenarios import Scenario, design_scenarios
from controller.slo import SLO
from controller.verdict import Choice

HURRIED, PATIENT = SLO(e2e_s=4.0), SLO(e2e_s=20.0)
DAYS = ("steady 70 % @ 6 s", "overload @ 6 s", "bursts @ 6 s")


class _InOrder(MergeUpstream):
    """Takes every batch from the head of the order, whatever was promised to whom."""

    def _form(self, *args: Any, mixed: bool, **named: Any) -> Choice:
        return super()._form(*args, mixed=False, **named)


def _play(day: Scenario, seed: int, *, in_order: bool) -> Record:
    rng = random.Random(50 + seed)
    requests = [replace(r, klass="hurried" if rng.random() < 0.5 else "patient") for r in day.requests(seed)]
    pool = PoolController(
        "simulated",
        slo=PATIENT,
        class_slos={"hurried": HURRIED, "patient": PATIENT},
        setpoints=Setpoints(8, 0.0),
        bounds=Bounds(1, 32, 0.0, 250.0),
        law="deadline",
        mode="merge",
        now=0.0,
        wall=lambda: 0.0,
    )
    if in_order:
        pool.dispatcher.upstream = _InOrder(0.01)
    return simulate_merge(requests, pool, day.plant(), horizon_s=day.horizon_s, seed=seed)


def mixed_bars(horizon_s: float, seeds: Sequence[int]) -> list[Bar]:
    """Goodput with half of the requests promised 4 s and half 20 s, first come first served."""
    print("promises of 4 s and 20 s in one queue, goodput/s in the order of service | by Moore-Hodgson:")
    ratios = []
    for day in [cell for cell in design_scenarios(horizon_s) if cell.label in DAYS]:
        figures = {
            in_order: [_play(day, seed, in_order=in_order).figures() for seed in seeds] for in_order in (True, False)
        }
        plain, chosen = (fmean(f.goodput for f in figures[in_order]) for in_order in (True, False))
        ratios.append(chosen / plain)
        print(
            f"  {day.name:12} {plain:.3f} | {chosen:.3f}, {100 * ratios[-1]:.1f}%, late "
            f"{100 * fmean(f.late_share for f in figures[False]):.1f}%",
            flush=True,
        )
    return [
        Bar.above("mixed promises: Moore-Hodgson / order of service, worst day", min(ratios), 1.0),
    ]
