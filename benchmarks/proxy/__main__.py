"""What the proxy costs, beside other proxies in one interleaved run.

    python -m benchmarks.proxy --install        install the peers that are missing
    python -m benchmarks.proxy [--quick] [--json FILE] [--only chat,stream,spread,hold,merge,...]

The proxies run one at a time on core 1; the mock model server and the load client share core 0. CPU time is each
proxy's own (user + system, its children included), read from the kernel's clock at both ends of the measured
window and divided by what ended in it. The tests go round the peers in turn, and medians are compared. Instructions
and memory are the same however busy the machine is: they are measured while the proxies start, and nothing else is.

`--quick` measures every bar in under 45 s: two rounds and not five, shorter ones, an overload of 2.5 s and not 60,
and peers only in what a bar compares them in. It says what that leaves out. Compiling the proxy, where that has not
been done (a minute or two, once), comes on top.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from benchmarks.bars import Bar, report
from benchmarks.proxy.bench import FULL, QUICK, Bench, Effort, Measure
from benchmarks.proxy.instructions import instruction_bars
from benchmarks.proxy.lone import lone
from benchmarks.proxy.merging import merging
from benchmarks.proxy.overload import overload
from benchmarks.proxy.peers import install
from benchmarks.proxy.processes import Processes, alone, native
from benchmarks.proxy.relaying import TESTS as RELAYED
from benchmarks.proxy.relaying import Relaying

OTHERS: dict[str, Callable[[Bench], Measure]] = {"merge": merging, "lone": lone, "overload": overload}
TESTS = (*RELAYED, *OTHERS, "instructions")
_FIRST_PORT, _COUNTED_PORT = 9500, 9700


def main() -> int:
    """Parse the options, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the peers that are missing, then stop")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats, under 45 s")
    parser.add_argument("--only", default=",".join(TESTS), help="tests to run, separated by commas")
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="how long the overload lasts (60; 2.5 with --quick)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the bars there as JSON")
    options = parser.parse_args()
    if options.install:
        return 1 if install() else 0
    tests = set(options.only.split(","))
    if unknown := tests - set(TESTS):
        parser.error(f"unknown tests {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    effort = QUICK if options.quick else FULL
    if options.seconds:
        effort = effort._replace(overload=effort.overload._replace(measured_s=options.seconds))
    # Trimtab is measured as it is meant to run; what cannot be compiled here is measured from source, and said.
    subprocess.run([sys.executable, "-m", "proxy.cli", "compile", "--if-possible"], check=True)
    with alone():
        started = time.monotonic()
        bars, failures = measure(effort, tests)
        print(f"took {time.monotonic() - started:.0f} s")
    unmet = report(bars, options.json)
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else unmet


def measure(effort: Effort, tests: set[str]) -> tuple[list[Bar], list[str]]:
    """Run the tests asked for; returns their bars and what went wrong."""
    cores = sorted(os.sched_getaffinity(0))
    with Processes() as processes:
        bench = Bench(processes, native(), count(_FIRST_PORT), effort, str(cores[-1]), str(cores[0]))
        with ThreadPoolExecutor(1) as pool:
            counting = pool.submit(_counted, effort, tests)
            relaying = Relaying(bench, tests)
            others = [start(bench) for name, start in OTHERS.items() if name in tests]
            relaying.wait()
            relaying.memory()
            counted = counting.result()
        bars = relaying.rounds()
        for other in others:
            bars += other()
    return bars + counted, bench.failures


def _counted(effort: Effort, tests: set[str]) -> list[Bar]:
    return instruction_bars(_COUNTED_PORT, share=effort.counted) if "instructions" in tests else []


if __name__ == "__main__":
    raise SystemExit(main())
