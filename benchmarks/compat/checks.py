"""Put one server's requests and client calls through both ways and judge each."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compat.company import in_company, settled
from benchmarks.compat.compare import Verdict, compare, compare_merged, compare_values
from benchmarks.compat.environments import CLIENTS
from benchmarks.compat.exchange import VOLATILE, ask, ask_together
from benchmarks.compat.running import DidNotStart, serving, trimtab
from benchmarks.compat.server import Probe, Server

__all__ = ["Outcome", "check"]

_CLIENTS = Path(__file__).parent / "clients"
_PROBE_S = 400


@dataclass
class Outcome:
    """What was found for one server."""

    server: Server
    requests: list[Verdict] = field(default_factory=list)
    merged: list[Verdict] = field(default_factory=list)
    largest_batch: int = 0
    """Most requests of a group that shared one upstream call."""
    clients: dict[str, list[Verdict]] = field(default_factory=dict)
    failure: str = ""
    """Why it could not be run at all."""

    @property
    def verdicts(self) -> list[Verdict]:
        """Everything that was judged."""
        return [*self.requests, *self.merged, *(v for verdicts in self.clients.values() for v in verdicts)]


def check(server: Server, folder: Path, *, slo: bool = False) -> Outcome:
    """Run `server` with Trimtab in front of it, configured for it or as the README does, and compare."""
    outcome = Outcome(server)
    if not server.installed:
        outcome.failure = "not installed (python -m benchmarks.compat --install)"
        return outcome
    try:
        with (
            serving(server, folder) as direct,
            trimtab(server, direct, folder, slo=slo) as (through, admin),
        ):
            for question in server.asks:
                answers = [ask(url, question) for url in (direct, through, direct)]
                verdict = compare(question, *answers)
                settled(verdict, question, answers[1], partial(ask, direct, question))
                outcome.requests.append(verdict)
            for group in server.together:
                alone = [ask(direct, question) for question in group]
                merged = ask_together(through, group)
                again = [ask(direct, question) for question in group]
                outcome.merged += map(compare_merged, group, alone, merged, again)
            outcome.merged += in_company(server.asks, server.company, direct, through)
            outcome.largest_batch = _largest_batch(admin)
            for probe in server.probes:
                outcome.clients[probe.script] = _probe(probe, direct, through)
    except DidNotStart as error:
        outcome.failure = str(error)
    return outcome


def _probe(probe: Probe, direct: str, through: str) -> list[Verdict]:
    """Have a client library make its calls: direct, through, direct."""
    if not CLIENTS.installed:
        return [Verdict(probe.script, differences=["the clients are not installed"])]
    argv = [str(CLIENTS.bin / "python"), str(_CLIENTS / f"{probe.script}.py"), probe.model, direct, through, direct]
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=_PROBE_S,
        check=False,
        cwd=_CLIENTS,
        env={**env, "NO_PROXY": "*"},
    )
    if done.returncode:
        return [Verdict(probe.script, differences=[f"ended with {done.returncode}: {done.stderr.strip()[-500:]}"])]
    first, second, third = json.loads(done.stdout)
    volatile = VOLATILE | probe.volatile
    names = [name for name in first if name not in probe.without]
    return [_judged(name, first[name], second[name], third[name], volatile) for name in names]


def _judged(name: str, direct: Any, through: Any, again: Any, volatile: frozenset[str]) -> Verdict:
    verdict = compare_values(name, direct, through, again, volatile)
    verdict.status = direct.get("status") or 200 if isinstance(direct, dict) and "error" in direct else 200
    return verdict


def _largest_batch(admin: str) -> int:
    """The most requests that shared a call, by the bucket of the batch-size histogram that holds it."""
    with urllib.request.urlopen(f"{admin}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    buckets = [line for line in lines if line.startswith("trimtab_batch_size_bucket")]
    counts = [(line.partition('le="')[2].partition('"')[0], float(line.rpartition(" ")[2])) for line in buckets]
    before, largest = 0.0, 0
    for bound, count in counts:
        if count > before and bound != "+Inf":
            largest = int(float(bound))
        before = count
    return largest
