"""A lone request now and then through a pool with a 50 ms window, in turns with going direct."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from benchmarks.bars import Bar
from benchmarks.proxy.bench import EMBED, Bench, Measure
from benchmarks.proxy.peers import trimtab_merge
from benchmarks.proxy.processes import wait_until_ready

__all__ = ["lone"]


def lone(bench: Bench) -> Measure:
    """Start the proxy and its model."""
    port, upstream = next(bench.ports), bench.mock("--slots", "1", "--base-us", "2000")
    argv = trimtab_merge(50)(port, upstream, bench.processes.folder)
    bench.processes.start(argv, bench.other_core, name="trimtab-lone")
    direct, through = (f"http://127.0.0.1:{at}/v1/embeddings" for at in (upstream, port))
    return lambda: _measure(bench, direct, through)


def _measure(bench: Bench, direct: str, through: str) -> list[Bar]:
    """Send both ways at the same rate, half a period apart: each request finds everything idle."""
    if not wait_until_ready(through, EMBED.encode(), 20):
        bench.fail(f"lone: Trimtab did not start, see {bench.processes.folder}")
        return []
    effort = bench.effort
    options = ["--rate", f"{effort.lone_rate:g}", "--secs", f"{effort.lone_s:g}", "--warm", "0", "--conns", "2"]

    def p50_ms(url: str) -> float:
        return float(bench.load(url, [*options, "--body", EMBED])["total_us"]["p50"]) / 1000

    with ThreadPoolExecutor(2) as pool:
        without = pool.submit(p50_ms, direct)
        time.sleep(0.5 / effort.lone_rate)
        added = pool.submit(p50_ms, through).result() - without.result()
    return [Bar.below("lone request, window 50 ms: added p50, ms", added, 5)]
