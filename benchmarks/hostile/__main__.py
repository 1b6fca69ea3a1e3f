"""What callers who mean harm and servers that misbehave can do to the proxy, and to each other through it.

    python -m benchmarks.hostile [--quick] [--json FILE] [--only crossing,bodies,...] [--build compiled,source]

Every part is a module of this package with a function `measure(quick) -> list[Bar]`. It runs in a process of its own,
once for each build that is asked for, so that one part's memory and open files are not another's. `--quick` takes
under 45 s: fewer exchanges, fewer connections, and both builds only where the wire is parsed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bars import Bar, report

PARTS: dict[str, str] = {
    "bodies": "bodies made to cost as much as they can",
    "slow": "bodies that trickle, and crowds of idle connections",
    "crossing": "junk behind answers on kept connections",
    "joining": "odd inputs in merged calls, and servers that read and answer them loosely",
    "following": "follow-ups on what one of two servers keeps, also while it is away",
    "restarts": "servers that die and come back, and whom it costs an answer",
    "sick": "a server that fails fast beside one that is well",
    "state": "a state file that is damaged, in the way, or another's",
    "worker": "requests made to cost the bundled worker as much as they can",
}
"""The parts and what each examines, in the order they run."""
ON_THE_WIRE = ("crossing", "joining")
"""What runs on every build, also with --quick."""
BUILDS = {"compiled": "1", "source": "0"}
_LIMIT_S = 1800


def main() -> int:
    """Parse the options, run the parts, report. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a taste of every part, under 45 s")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to run, separated by commas")
    parser.add_argument("--build", default=",".join(BUILDS), help="compiled, source or both (default)")
    parser.add_argument("--json", metavar="FILE", help="write the bars there as JSON")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return _run_here(options.part, options.quick, options.json)
    parts, builds = options.only.split(","), options.build.split(",")
    if unknown := [*(set(parts) - set(PARTS)), *(set(builds) - set(BUILDS))]:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}; builds compiled, source")
    if "compiled" in builds:
        subprocess.run([sys.executable, "-m", "proxy.cli", "compile", "--if-possible"], check=True)
    started, bars = time.monotonic(), []
    for part in parts:
        # A taste needs both builds only where the wire is parsed.
        for build in builds if not options.quick or part in ON_THE_WIRE else builds[:1]:
            bars += _run_apart(part, build, options.quick)
    print(f"took {time.monotonic() - started:.0f} s")
    return report(bars, options.json)


def _run_here(part: str, quick: bool, path: str) -> int:
    from proxy.compiled import activate

    activate()
    Path(path).write_text(json.dumps(importlib.import_module(f"benchmarks.hostile.{part}").measure(quick)))
    return 0


def _run_apart(part: str, build: str, quick: bool) -> list[Bar]:
    """Run one part in a process of its own. One that does not come to its end is a bar that is missed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bars.json"
        command = [sys.executable, "-m", "benchmarks.hostile", "--part", part, "--json", str(file)]
        print(f"== {part} ({build}): {PARTS[part]}", flush=True)
        environment = {**os.environ, "TRIMTAB_COMPILED": BUILDS[build]}
        try:
            subprocess.run(command + ["--quick"] * quick, env=environment, check=True, timeout=_LIMIT_S)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"FAILED {part}: {error}")
            return [Bar(f"{part}, {build}: came to its end", 0, 1, False)]
        return [Bar(f"{name}, {build}", *rest) for name, *rest in json.loads(file.read_text())]


if __name__ == "__main__":
    sys.exit(main())
