"""Real servers behind Trimtab, real clients in front: is anything different from going direct?

    python -m benchmarks.compat --install [--only vllm,...]      install what is missing (about 14 GB in all)
    python -m benchmarks.compat [--only vllm,...] [--slo] [--json FILE] [--list]

Each server is started on a port of its own with Trimtab in front of it. Every request is sent direct, through
Trimtab, and direct again; groups of requests that may share an upstream call are sent at once; and each client
library makes its calls both ways. The exit code is 1 when anything differs, 2 when a server could not be run.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.compat.checks import check
from benchmarks.compat.environments import CLIENTS, ENVIRONMENTS
from benchmarks.compat.report import as_json, details, table
from benchmarks.compat.servers import SERVERS
from benchmarks.environments import install_all


def _stopped(number: int, frame: object) -> None:
    """Leave by way of every `finally`, so that no server outlives the run."""
    raise SystemExit(128 + number)


def main() -> int:
    """Parse the options, install or compare, report."""
    signal.signal(signal.SIGTERM, _stopped)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install what is missing, then stop")
    parser.add_argument("--only", default=",".join(SERVERS), help="servers, separated by commas")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every verdict there")
    parser.add_argument("--slo", action="store_true", help="configure the upstream and the README's SLO alone")
    parser.add_argument("--list", action="store_true", help="list the servers and whether they are installed")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := set(names) - set(SERVERS):
        parser.error(f"unknown servers {', '.join(sorted(unknown))}; there are {', '.join(SERVERS)}")
    if options.install:
        needed = {SERVERS[name].environment for name in names} - {None}
        wanted = [CLIENTS, *(environment for name, environment in ENVIRONMENTS.items() if name in needed)]
        return 1 if install_all(wanted) else 0
    if options.list:
        for name in names:
            server = SERVERS[name]
            print(f"{name:14} {server.version:12} {'installed' if server.installed else 'not installed'}")
        return 0
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="trimtab-compat-") as folder:
        for name in names:
            start = time.monotonic()
            print(f"==> {name}", file=sys.stderr, flush=True)
            outcome = check(SERVERS[name], Path(folder), slo=options.slo)
            outcomes.append(outcome)
            for line in details(outcome):
                print(f"    {line}", file=sys.stderr, flush=True)
            print(f"    {len(outcome.verdicts)} checks in {time.monotonic() - start:.0f} s", file=sys.stderr)
    print(table(outcomes))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(as_json(outcomes))
    differs = any(not verdict.same for outcome in outcomes for verdict in outcome.verdicts)
    return 1 if differs else 2 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    raise SystemExit(main())
