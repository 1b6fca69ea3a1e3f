"""Twenty times what the model can serve: who is accepted is on time, who is refused knows at once."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.bars import Bar
from benchmarks.proxy.bench import CHAT, Bench, Measure
from benchmarks.proxy.peers import trimtab_gate
from benchmarks.proxy.processes import wait_until_ready

__all__ = ["overload"]

_SLOTS, _SERVICE_S = 4, 0.080


def overload(bench: Bench) -> Measure:
    """Start the proxy, which promises 500 ms, and its model."""
    upstream = bench.mock("--slots", str(_SLOTS), "--base-us", f"{1e6 * _SERVICE_S:.0f}")
    port = next(bench.ports)
    pool = trimtab_gate(port, upstream, bench.processes.folder)
    path = Path(pool[-1])
    text = path.read_text().replace("e2e_ms: 3600000", "e2e_ms: 500").replace("initial: 2048", "initial: 4")
    path.write_text(text.replace("max: 4096", "max: 4"))
    pid = bench.processes.start(pool, bench.proxy_core, name="trimtab-overload")
    return lambda: _measure(bench, f"http://127.0.0.1:{port}/v1/chat/completions", pid)


def _measure(bench: Bench, url: str, pid: int) -> list[Bar]:
    if not wait_until_ready(url, CHAT, 20):
        bench.fail(f"overload: Trimtab did not start, see {bench.processes.folder}")
        return []
    capacity = _SLOTS / _SERVICE_S
    options = ["--rate", f"{20 * capacity:.0f}", "--conns", "512", "--body", CHAT.decode()]
    options += ["--proc", f"proxy={pid}", *bench.effort.overload.options()]
    result = bench.load(url, options)
    print(f"overload {json.dumps(result)}")
    return [
        Bar.above("overload 20x: goodput as a share of capacity", result["ok"] / result["secs"] / capacity, 0.95),
        Bar.below("overload 20x: P99 of accepted, ms", result["total_us"]["p99"] / 1000, 500),
        Bar.below("overload 20x: P99 of refusals, ms", result["refused_us"]["p99"] / 1000, 10),
        Bar.below("overload 20x: refusals without Retry-After", result["no_retry_after"], 0),
    ]
