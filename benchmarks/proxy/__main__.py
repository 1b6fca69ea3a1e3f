"""What the proxy costs, beside other proxies in one interleaved run.

    python -m benchmarks.proxy --install        install the peers that are missing
    python -m benchmarks.proxy [--quick] [--json FILE] [--only chat,stream,spread,hold,merge,...]

The proxies run one at a time on core 1; the mock model server and the load client share core 0. CPU time is each
proxy's own (user + system, its children included), read from the kernel's clock at both ends of the measured
window and divided by what ended in it. The tests go round the peers in turn, and medians are compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import Bar, report
from benchmarks.proxy.instructions import instruction_bars
from benchmarks.proxy.peers import PEERS, install, mosec_command, mosec_installed, trimtab_gate, trimtab_merge
from benchmarks.proxy.processes import Processes, alone, mock_counts, native, wait_until_ready

TESTS = ("chat", "stream", "spread", "hold", "merge", "lone", "overload", "instructions")
CHAT = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hi"}]}).encode()
SENTENCE = "a sentence of some forty characters, so."
EMBED = json.dumps({"model": "mock", "input": SENTENCE})
EMBED_32 = json.dumps({"model": "mock", "input": [SENTENCE] * 32})

IN_STEP = ("--user", "step-us:10000")
"""A token of every stream each 10 ms, all at the same moments: so engines make them."""
SPREAD = ("--user", "spread-us:10000")
"""The same from a moment on that is each stream's own: as behind many engines. Each event wakes its proxy alone."""
PACED_1_S = ("--user", "gap-us:1000000")
_EVENTS = ("--stream", "--expect", "64", "--tokens", "64", "--conns", "32", "--warm", "2")
_HELD = 1000
"""Streams that are open at once while memory is measured."""


class Bench(NamedTuple):
    """One run: its processes, the native tools, the next free port, how long and how often to measure."""

    processes: Processes
    tools: Path
    ports: Any
    secs: str
    repeats: int
    quick: bool
    proxy_core: str
    other_core: str

    def mock(self, *arguments: str) -> tuple[int, int]:
        """Start a mock model server and return its port and pid."""
        port = next(self.ports)
        argv = [str(self.tools / "mock"), "--port", str(port), *arguments]
        return port, self.processes.start(argv, self.other_core, name=f"mock-{port}")


def median(runs: list[float]) -> str:
    """Print a median with its range."""
    return f"{statistics.median(runs):8.1f} ({min(runs):.1f}..{max(runs):.1f})"


def proxies(bench: Bench, tests: set[str]) -> dict[tuple[str, str], list[float]]:
    """Run chat, stream, spread and hold round the peers; returns {(test, peer): one figure a repeat}."""
    upstream, _ = bench.mock("--gap-us", "10000")
    started, running = [], []
    for peer in PEERS:
        if not peer.installed:
            print(f"{peer.name}: not installed, left out (python -m benchmarks.proxy --install)", file=sys.stderr)
            continue
        port = next(bench.ports)
        argv = peer.command(port, upstream, bench.processes.folder)
        pid = bench.processes.start(argv, bench.proxy_core, env=peer.env, name=peer.name)
        started.append((peer, f"http://127.0.0.1:{port}/v1/chat/completions", pid))
    for peer, url, pid in started:
        if not wait_until_ready(url, CHAT, peer.boot_s):
            print(f"{peer.name}: did not start, see {bench.processes.folder / peer.name}.log", file=sys.stderr)
            continue
        running.append((peer, url, pid))
    arguments = {
        "chat": ["--conns", "32", "--warm", "0.5"],
        "stream": [*_EVENTS, *IN_STEP],
        "spread": [*_EVENTS, *SPREAD],
        "hold": [
            "--stream",
            "--tokens",
            "600",
            "--conns",
            str(_HELD),
            "--hold",
            "1" if bench.quick else "3",
            *PACED_1_S,
        ],
    }
    figure = {
        "chat": "cpu_us_per_req",
        "stream": "cpu_us_per_event",
        "spread": "cpu_us_per_event",
        "hold": "kb_per_stream",
    }
    results: dict[tuple[str, str], list[float]] = {}
    for repeat in range(bench.repeats):
        for test in figure:
            if test not in tests or (test == "hold" and repeat):
                continue
            for peer, url, pid in running:
                if test not in peer.tests:
                    continue
                options = ["--header", "Authorization: Bearer sk-none", "--proc", f"proxy={pid}", *arguments[test]]
                if test != "hold":
                    options += ["--secs", bench.secs]
                result = bench.processes.load(bench.tools, url, options, bench.other_core)
                wrong = {key: result[key] for key in ("bad_status", "bad_body", "errors") if result.get(key)}
                if wrong or not result.get("ok", result.get("held")):
                    print(f"{peer.name} {test}: not counted: {wrong or 'no answers'}", file=sys.stderr)
                    continue
                if test == "hold" and result["held"] != _HELD:
                    print(f"{peer.name} hold: only {result['held']} of {_HELD} streams came about", file=sys.stderr)
                    continue
                results.setdefault((test, peer.name), []).append(result["proxy"][figure[test]])
    for (test, name), runs in sorted(results.items()):
        print(f"{test:7} {name:14} {median(runs)} {figure[test]}")
    return results


def proxy_bars(results: dict[tuple[str, str], list[float]]) -> list[Bar]:
    """Compare the medians."""
    wanted = {
        ("chat", "aiohttp"): 0.5,
        ("chat", "envoy"): 1.0,
        ("chat", "sglang-router"): 0.85,
        ("chat", "litellm"): 0.01,
        ("stream", "envoy"): 1.0,
        ("stream", "aiohttp"): 0.55,
        ("spread", "envoy"): 1.0,
    }
    bars = []
    for (test, peer), target in wanted.items():
        ours, theirs = results.get((test, "trimtab")), results.get((test, peer))
        if ours and theirs:
            ratio = statistics.median(ours) / statistics.median(theirs)
            unit = "request" if test == "chat" else "event"
            bars.append(Bar.below(f"{test}: CPU per {unit} against {peer}", ratio, target))
    if held := results.get(("hold", "trimtab")):
        bars.append(Bar.below("hold: KB per open stream of 1,000", statistics.median(held), 25))
    return bars


def merging(bench: Bench) -> list[Bar]:
    """Merged embeddings beside Mosec: CPU and batch at no model time, rate at 5 ms.

    The model does not reach its own 6,400 a second where its core is busy with other things, so what it does with
    full batches and nothing before it is measured in turn.
    """
    figures: dict[tuple[str, int], dict[str, list[float]]] = {}
    direct: list[float] = []
    for model_ms, conns in ((0, 64), (5, 128)):
        targets = {}
        port, upstream = next(bench.ports), bench.mock("--slots", "1", "--base-us", str(model_ms * 1000))[0]
        argv = trimtab_merge(5)(port, upstream, bench.processes.folder)
        pid = bench.processes.start(argv, bench.proxy_core, name=f"trimtab-merge-{model_ms}")
        url = f"http://127.0.0.1:{port}/v1/embeddings"
        if wait_until_ready(url, EMBED.encode(), 20):
            targets["trimtab"] = (url, pid, upstream, None)
        if mosec_installed():
            port = next(bench.ports)
            tally = bench.processes.folder / f"tally-{model_ms}"
            env = {"MODEL_MS": str(model_ms), "WINDOW_MS": "5", "BATCH": "32", "TALLY": str(tally)}
            pid = bench.processes.start(mosec_command(port), bench.proxy_core, env=env, name=f"mosec-{model_ms}")
            url = f"http://127.0.0.1:{port}/inference"
            if wait_until_ready(url, EMBED.encode(), 60):
                targets["mosec"] = (url, pid, 0, tally)
        for _ in range(bench.repeats):
            if model_ms and "trimtab" in targets:
                direct.append(full_batches(bench, targets["trimtab"][2]))
            for name, (url, pid, upstream, tally) in targets.items():
                before = json.loads(tally.read_text()) if tally and tally.exists() else [0, 0]
                if upstream:
                    mock_counts(upstream)
                options = ["--conns", str(conns), "--secs", bench.secs, "--warm", "1", "--body", EMBED]
                options += ["--proc", f"proxy={pid}"]
                result = bench.processes.load(bench.tools, url, options, bench.other_core)
                if upstream:
                    counts = mock_counts(upstream)
                    batch = counts["items"] / max(1, counts["requests"])
                else:
                    after = json.loads(tally.read_text()) if tally else [0, 0]
                    batch = (after[1] - before[1]) / max(1, after[0] - before[0])
                row = figures.setdefault((name, model_ms), {"cpu": [], "rate": [], "batch": []})
                row["cpu"].append(result["proxy"]["cpu_us_per_req"])
                row["rate"].append(result["rps"])
                row["batch"].append(batch)
    middle = {key: {k: statistics.median(v) for k, v in row.items()} for key, row in figures.items()}
    for (name, model_ms), row in middle.items():
        told = f"{row['cpu']:.1f} us, {row['rate']:.0f} req/s, batch {row['batch']:.1f}"
        print(f"merge   {name:14} model {model_ms} ms: {told}")
    if direct:
        print(f"merge   the model      full batches, without a proxy: {statistics.median(direct):.0f} items/s")
    bars = []
    if ("trimtab", 0) in middle:
        bars.append(Bar.above("merge: mean batch at 64 connections", middle["trimtab", 0]["batch"], 28))
        bars.append(Bar.above("merge: share of a 5 ms model's rate", middle["trimtab", 5]["rate"] / 6400, 0.9))
    if ("mosec", 0) in middle and ("trimtab", 0) in middle:
        cpu = middle["trimtab", 0]["cpu"] / middle["mosec", 0]["cpu"]
        rate = middle["trimtab", 5]["rate"] / middle["mosec", 5]["rate"]
        bars.append(Bar.below("merge: CPU per request against mosec", cpu, 1.3))
        bars.append(Bar.above("merge: rate at 128 connections against mosec", rate, 1.4))
    return bars


def full_batches(bench: Bench, upstream: int) -> float:
    """Return the items a second of a model that is always sent the next 32 while it has 32."""
    options = ["--conns", "2", "--secs", bench.secs, "--warm", "0.5", "--body", EMBED_32]
    url = f"http://127.0.0.1:{upstream}/v1/embeddings"
    return 32 * float(bench.processes.load(bench.tools, url, options, bench.other_core)["rps"])


def lone(bench: Bench) -> list[Bar]:
    """One request a second through a pool with a 50 ms window, against going direct."""
    port, upstream = next(bench.ports), bench.mock("--slots", "1", "--base-us", "2000")[0]
    argv = trimtab_merge(50)(port, upstream, bench.processes.folder)
    bench.processes.start(argv, bench.other_core, name="trimtab-lone")
    urls = {
        "direct": f"http://127.0.0.1:{upstream}/v1/embeddings",
        "trimtab": f"http://127.0.0.1:{port}/v1/embeddings",
    }
    if not wait_until_ready(urls["trimtab"], EMBED.encode(), 20):
        return []
    p50 = {}
    for name, url in urls.items():
        options = [
            "--rate",
            "2",
            "--conns",
            "2",
            "--secs",
            "4" if bench.quick else "6",
            "--warm",
            "0",
            "--body",
            EMBED,
        ]
        p50[name] = bench.processes.load(bench.tools, url, options, bench.other_core)["total_us"]["p50"] / 1000
    return [Bar.below("lone request, window 50 ms: added p50, ms", p50["trimtab"] - p50["direct"], 5)]


def overload(bench: Bench, seconds: float) -> list[Bar]:
    """Twenty times what the model can serve: who is accepted is on time, who is refused knows at once."""
    upstream, _ = bench.mock("--slots", "4", "--base-us", "80000")
    capacity = 4 / 0.080
    port = next(bench.ports)
    pool = trimtab_gate(port, upstream, bench.processes.folder)
    path = Path(pool[-1])
    text = path.read_text().replace("e2e_ms: 3600000", "e2e_ms: 500").replace("initial: 2048", "initial: 4")
    path.write_text(text.replace("max: 4096", "max: 4"))
    pid = bench.processes.start(pool, bench.proxy_core, name="trimtab-overload")
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    if not wait_until_ready(url, CHAT, 20):
        return []
    options = [
        "--rate",
        f"{20 * capacity:.0f}",
        "--conns",
        "512",
        "--secs",
        f"{seconds:g}",
        "--warm",
        "2",
        "--body",
        CHAT.decode(),
    ]
    result = bench.processes.load(bench.tools, url, [*options, "--proc", f"proxy={pid}"], bench.other_core)
    print(f"overload {json.dumps(result)}")
    return [
        Bar.above("overload 20x: goodput as a share of capacity", result["ok"] / result["secs"] / capacity, 0.95),
        Bar.below("overload 20x: P99 of accepted, ms", result["total_us"]["p99"] / 1000, 500),
        Bar.below("overload 20x: P99 of refusals, ms", result["refused_us"]["p99"] / 1000, 10),
        Bar.below("overload 20x: refusals without Retry-After", result["no_retry_after"], 0),
    ]


def main() -> int:
    """Parse the options, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the peers that are missing, then stop")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats")
    parser.add_argument("--only", default=",".join(TESTS), help="tests to run, separated by commas")
    parser.add_argument("--seconds", type=float, metavar="N", help="how long the overload lasts (60; 6 with --quick)")
    parser.add_argument("--json", metavar="FILE", help="write the bars there as JSON")
    options = parser.parse_args()
    if options.install:
        return 1 if install() else 0
    tests = set(options.only.split(","))
    if unknown := tests - set(TESTS):
        parser.error(f"unknown tests {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    # Trimtab is measured as it is meant to run; what cannot be compiled here is measured from source, and said.
    subprocess.run([sys.executable, "-m", "proxy.cli", "compile", "--if-possible"], check=True)
    with alone():
        bars = measure(options, tests)
    return report(bars, options.json)


def measure(options: argparse.Namespace, tests: set[str]) -> list[Bar]:
    """Run the tests asked for, one kind after the other."""
    cores = sorted(os.sched_getaffinity(0))
    bars: list[Bar] = []
    secs, repeats = ("0.5", 2) if options.quick else ("2", 5)
    for steps in ({"chat", "stream", "spread", "hold"}, {"merge"}, {"lone"}, {"overload"}, {"instructions"}):
        if not steps & tests:
            continue
        if steps == {"instructions"}:
            bars += instruction_bars(9700, quick=options.quick)
            continue
        with Processes() as processes:
            ports = itertools.count(9500 + 20 * len(bars))
            bench = Bench(processes, native(), ports, secs, repeats, options.quick, str(cores[-1]), str(cores[0]))
            if steps == {"merge"}:
                bars += merging(bench)
            elif steps == {"lone"}:
                bars += lone(bench)
            elif steps == {"overload"}:
                bars += overload(bench, options.seconds or (6 if options.quick else 60))
            else:
                bars += proxy_bars(proxies(bench, tests))
    return bars


if __name__ == "__main__":
    raise SystemExit(main())
