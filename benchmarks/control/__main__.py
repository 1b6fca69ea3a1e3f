"""`python -m benchmarks.control [--quick] [--data DIR] [--json FILE]`: the bars of the control plane.

Common random numbers throughout: every law meets the same arrivals and the same luck. The static oracle is the best
fixed batch size and window by grid search, with the same admission as every law has.

`--quick` has every kind of bar in under 45 s and says what it leaves out of them.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import Bar, report
from benchmarks.control.engine import fairness_bars, gate_bars
from benchmarks.control.live import DAYS as LIVE_DAYS
from benchmarks.control.live import live_bars
from benchmarks.control.merge import (
    AGAINST_PUBLISHED,
    LAWS,
    Effort,
    design_bars,
    fresh_bars,
    healing_bars,
    measure_all,
    recovery_bars,
)
from benchmarks.control.mixed import mixed_bars
from benchmarks.control.ordering import ordering_bars
from benchmarks.control.overhead import overhead_bars
from benchmarks.parallel import Work, in_parallel
from controller.simulator.arrivals import read_trace
from controller.simulator.run import GRID
from controller.simulator.scenarios import Scenario, design_scenarios, fresh_scenarios, replay

PARTS = ("design", "fresh", "recovery", "gate", "ordering", "overhead", "mixed", "live")
QUICK = ("steady 70 % @ 6 s", "overload @ 6 s", "bursts @ 6 s", "bursts @ 2.5 s")
QUICK_VARIANTS = ("bursts @ 6 s, knee", "overload @ 6 s, random lengths")
QUICK_FRESH = ("sawtooth @ 5 s", "slow spikes 2x @ 5 s, random lengths")
LEFT_OUT = """\
left out of --quick: all seeds but one, most days, most sizes the oracles are searched over, aimd and gradient,
recorded arrivals among the fresh days, the published rule in bursts and in steady traffic, ordering by what others
would predict, and playing a live day again on which the machine stood still"""
TRACES = (("azure2023_conv", 5.0), ("mooncake_conversation", 4.5))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed and a few days, in two processes; under 45 s")
    parser.add_argument("--data", default=os.environ.get("TRIMTAB_DATA"), help="folder with the public traces")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--laws", default=",".join(LAWS), help="laws to play beside the oracle")
    parser.add_argument("--sizes", help="batch sizes the oracle is searched over")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", help=f"comma-separated parts: {', '.join(PARTS)}")
    parser.add_argument("--cells", metavar="REGEX", help="only the scenarios whose label has this in it")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    quick: bool = options.quick
    parts = set(options.only.split(",") if options.only else PARTS)
    data = Path(options.data) if options.data else None
    started = time.monotonic()
    bars: list[Bar] = []
    horizon = 900.0
    design, fresh = design_scenarios(horizon), fresh_scenarios(horizon)
    if quick:
        effort = Effort((0,), sizes=(12, 16, 20), windows_at=(), laws=("deadline", "step", "published"))
        design = [cell for cell in design if cell.label in QUICK + QUICK_VARIANTS]
        fresh = [cell for cell in fresh if cell.label in QUICK_FRESH]
    else:
        sizes = tuple(map(int, options.sizes.split(","))) if options.sizes else GRID
        effort = Effort(
            tuple(range(options.seeds)), sizes=sizes, laws=tuple(options.laws.split(",")), jobs=options.jobs
        )
        fresh += _replays(data, horizon)
    if options.cells:
        design = [cell for cell in design if re.search(options.cells, cell.label)]
        fresh = [cell for cell in fresh if re.search(options.cells, cell.label)]
    if "overhead" in parts:
        bars += overhead_bars(500 if quick else 2000)
    works: dict[str, Work] = {
        "design": lambda: design_bars(measure_all(design, effort), AGAINST_PUBLISHED[: 1 if quick else None]),
        "fresh": lambda: fresh_bars(measure_all(fresh, effort)),
        "recovery": lambda: _recovery(design, effort, quick),
        "gate": lambda: gate_bars(data, 900.0, 1 if quick else 3, effort.seeds, every=2 if quick else 1),
        "ordering": lambda: [
            *ordering_bars(480.0 if quick else 1500.0, effort.seeds, data, ceilings=not quick),
            *fairness_bars(60.0 if quick else 300.0),
        ],
        "mixed": lambda: mixed_bars(300.0 if quick else 900.0, effort.seeds),
    }
    # Simulated time passes as it does however busy the machine is.
    processes = min(2, os.cpu_count() or 1) if quick else 1
    bars += in_parallel([work for part, work in works.items() if part in parts], processes)
    if "live" in parts and quick:
        bars += live_bars(30.0, effort.seeds, LIVE_DAYS[1:2], tries=1)
    elif "live" in parts:
        bars += live_bars(120.0, effort.seeds[:1])
    if quick:
        print(LEFT_OUT)
    print(f"took {time.monotonic() - started:.0f} s")
    return report(bars, options.json)


def _recovery(design: Sequence[Scenario], effort: Effort, quick: bool) -> list[Bar]:
    days = [cell for cell in design if cell.phases and (not quick or cell.label == "overload @ 6 s")]
    steady = next(cell for cell in design_scenarios(300.0) if cell.label == "steady 70 % @ 6 s")
    return recovery_bars(days, effort) + healing_bars(steady, effort)


def _replays(data: Path | None, horizon_s: float) -> list[Scenario]:
    """Return replays of the recorded arrivals that are there."""
    if data is None:
        return []
    found = []
    for name, rate in TRACES:
        path = data / f"{name}.csv.gz"
        if path.exists():
            found.append(replay(name, read_trace(path), rate, horizon_s=horizon_s))
    return found


if __name__ == "__main__":
    sys.exit(main())
