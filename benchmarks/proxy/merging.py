"""Merged embeddings beside Mosec: CPU and batch at no model time, rate at 5 ms."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.proxy.bench import EMBED, SENTENCE, Bench, Measure
from benchmarks.proxy.peers import mosec_command, mosec_installed, trimtab_merge
from benchmarks.proxy.processes import mock_counts, wait_until_ready

__all__ = ["merging"]

_EMBED_32 = json.dumps({"model": "mock", "input": [SENTENCE] * 32})
_CONNECTIONS = {0: 64, 5: 128}
"""Model time of a batch in ms -> connections."""
_MODEL_RATE = 6400
"""Items a second of a model that takes 5 ms for 32."""


class _Target(NamedTuple):
    """A server that merges."""

    url: str
    pid: int
    upstream: int
    """The mock's port; 0 where the model is in the same server."""
    tally: Path
    """Where Mosec's model counts."""

    def counted(self) -> tuple[int, int]:
        """Return calls of the model and items in them; those of the mock are since it was asked before."""
        if self.upstream:
            counts = mock_counts(self.upstream)
            return counts["requests"], counts["items"]
        calls, items = json.loads(self.tally.read_text()) if self.tally.exists() else (0, 0)
        return calls, items

    def batch(self, before: tuple[int, int]) -> float:
        """Return the mean batch since `before` was counted."""
        calls, items = self.counted()
        if not self.upstream:
            calls, items = calls - before[0], items - before[1]
        return items / max(1, calls)


def merging(bench: Bench) -> Measure:
    """Start both servers, a pair for each model."""
    started = _start(bench)
    return lambda: _measure(bench, _answering(bench, started))


_Targets = dict[tuple[str, int], _Target]
"""(server, model time in ms) to where it is."""


def _measure(bench: Bench, targets: _Targets) -> list[Bar]:
    """Measure both servers in turn.

    The model does not reach its own 6,400 a second where its core is busy with other things, so what it does with
    full batches and nothing before it is measured in turn.
    """
    figures: dict[tuple[str, int], dict[str, list[float]]] = {}
    direct: list[float] = []
    for model_ms, conns in _CONNECTIONS.items():
        for _ in range(bench.effort.repeats):
            if model_ms and ("trimtab", model_ms) in targets:
                direct.append(_full_batches(bench, targets["trimtab", model_ms].upstream))
            for name in ("trimtab", "mosec"):
                if (target := targets.get((name, model_ms))) is None:
                    continue
                before = target.counted()
                options = ["--conns", str(conns), "--body", EMBED, "--proc", f"proxy={target.pid}"]
                result = bench.load(target.url, [*options, *bench.effort.merge.options()])
                row = figures.setdefault((name, model_ms), {"cpu": [], "rate": [], "batch": []})
                row["cpu"].append(result["proxy"]["cpu_us_per_req"])
                row["rate"].append(result["rps"])
                row["batch"].append(target.batch(before))
    middle = {key: {k: statistics.median(v) for k, v in row.items()} for key, row in figures.items()}
    for (name, model_ms), row in middle.items():
        told = f"{row['cpu']:.1f} us, {row['rate']:.0f} req/s, batch {row['batch']:.1f}"
        print(f"merge   {name:14} model {model_ms} ms: {told}")
    if direct:
        print(f"merge   the model      full batches, without a proxy: {statistics.median(direct):.0f} items/s")
    return _bars(middle)


def _bars(middle: dict[tuple[str, int], dict[str, float]]) -> list[Bar]:
    bars = []
    if ("trimtab", 0) in middle:
        bars.append(Bar.above("merge: mean batch at 64 connections", middle["trimtab", 0]["batch"], 28))
    if ("trimtab", 5) in middle:
        share = middle["trimtab", 5]["rate"] / _MODEL_RATE
        bars.append(Bar.above("merge: share of a 5 ms model's rate", share, 0.9))
    if ("trimtab", 0) in middle and ("mosec", 0) in middle:
        cpu = middle["trimtab", 0]["cpu"] / middle["mosec", 0]["cpu"]
        bars.append(Bar.below("merge: CPU per request against mosec", cpu, 1.3))
    if ("trimtab", 5) in middle and ("mosec", 5) in middle:
        rate = middle["trimtab", 5]["rate"] / middle["mosec", 5]["rate"]
        bars.append(Bar.above("merge: rate at 128 connections against mosec", rate, 1.4))
    return bars


def _start(bench: Bench) -> _Targets:
    with_mosec = mosec_installed()
    if not with_mosec:
        print("mosec: not installed, left out (python -m benchmarks.proxy --install)", file=sys.stderr)
    started = {}
    for model_ms in _CONNECTIONS:
        tally = bench.processes.folder / f"tally-{model_ms}"
        upstream = bench.mock("--slots", "1", "--base-us", str(model_ms * 1000))
        port, name = next(bench.ports), f"trimtab-merge-{model_ms}"
        argv = trimtab_merge(5)(port, upstream, bench.processes.folder)
        pid = bench.processes.start(argv, bench.proxy_core, name=name)
        started["trimtab", model_ms] = _Target(f"http://127.0.0.1:{port}/v1/embeddings", pid, upstream, tally)
        if with_mosec:
            port, name = next(bench.ports), f"mosec-{model_ms}"
            env = {"MODEL_MS": str(model_ms), "WINDOW_MS": "5", "BATCH": "32", "TALLY": str(tally)}
            pid = bench.processes.start(mosec_command(port), bench.proxy_core, env=env, name=name)
            started["mosec", model_ms] = _Target(f"http://127.0.0.1:{port}/inference", pid, 0, tally)
    return started


def _answering(bench: Bench, started: _Targets) -> _Targets:
    """Wait for what was started; what does not start is said, and left out."""
    running = {}
    for (name, model_ms), target in started.items():
        if wait_until_ready(target.url, EMBED.encode(), 60):
            running[name, model_ms] = target
        else:
            bench.fail(f"{name}, model {model_ms} ms: did not start, see {bench.processes.folder}")
    return running


def _full_batches(bench: Bench, upstream: int) -> float:
    """Return the items a second of a model that is always sent the next 32 while it has 32."""
    options = ["--conns", "2", "--body", _EMBED_32, *bench.effort.model.options()]
    return 32 * float(bench.load(f"http://127.0.0.1:{upstream}/v1/embeddings", options)["rps"])
