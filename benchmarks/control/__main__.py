"""`python -m benchmarks.control [--quick] [--data DIR] [--json FILE]`: the bars of the control plane.

Common random numbers throughout: every law meets the same arrivals and the same luck. The static oracle is the best
fixed batch size and window by grid search, with the same admission as every law has.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bars import report
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
from controller.simulator.arrivals import read_trace
from controller.simulator.run import GRID
from controller.simulator.scenarios import Scenario, design_scenarios, fresh_scenarios, replay

PARTS = ("design", "fresh", "recovery", "gate", "ordering", "overhead", "mixed", "live")
QUICK = ("steady 70 % @ 6 s", "overload @ 6 s", "bursts @ 6 s", "bursts @ 2.5 s")
QUICK_VARIANTS = ("bursts @ 6 s, knee", "overload @ 6 s, random lengths")
QUICK_FRESH = ("sawtooth @ 5 s", "slow spikes 2x @ 5 s, random lengths")
TRACES = (("azure2023_conv", 5.0), ("mooncake_conversation", 4.5))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.control", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed and a few cells; under 45 s")
    parser.add_argument("--data", default=os.environ.get("TRIMTAB_DATA"), help="folder with the public traces")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--laws", default=",".join(LAWS), help="laws to play beside the oracle")
    parser.add_argument("--sizes", help="batch sizes the oracle is searched over")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", help=f"comma-separated parts: {', '.join(PARTS)}")
    parser.add_argument("--cells", metavar="REGEX", help="only the scenarios whose label has this in it")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    parts = set(options.only.split(",") if options.only else PARTS)
    data = Path(options.data) if options.data else None
    started = time.monotonic()
    bars = []
    horizon = 900.0
    design, fresh = design_scenarios(horizon), fresh_scenarios(horizon)
    if options.quick:
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
        bars += overhead_bars(500 if options.quick else 2000)
    if "design" in parts:
        against = AGAINST_PUBLISHED[:1] if options.quick else AGAINST_PUBLISHED
        bars += design_bars(measure_all(design, effort), against)
    if "fresh" in parts:
        bars += fresh_bars(measure_all(fresh, effort))
    if "recovery" in parts:
        wanted = ("overload @ 6 s",) if options.quick else ()
        days = [cell for cell in design if cell.phases and (not wanted or cell.label in wanted)]
        bars += recovery_bars(days, effort)
        steady = next(cell for cell in design_scenarios(300.0) if cell.label == "steady 70 % @ 6 s")
        bars += healing_bars(steady, effort)
    if "gate" in parts:
        bars += gate_bars(data, 600.0 if options.quick else 900.0, 1 if options.quick else 3, effort.seeds)
    if "ordering" in parts:
        bars += ordering_bars(480.0 if options.quick else 1500.0, effort.seeds, data)
        bars += fairness_bars(60.0 if options.quick else 300.0)
    if "mixed" in parts:
        bars += mixed_bars(300.0 if options.quick else 900.0, effort.seeds)
    if "live" in parts:
        bars += live_bars(*((45.0, effort.seeds, LIVE_DAYS[1:2]) if options.quick else (120.0, effort.seeds[:1])))
    print(f"took {time.monotonic() - started:.0f} s")
    return report(bars, options.json)


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
