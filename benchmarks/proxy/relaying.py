"""Chats, streams in step, streams spread out, and open streams: round all proxies, one run each in turn."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.bars import Bar
from benchmarks.proxy.bench import CHAT, Bench, Effort
from benchmarks.proxy.peers import PEERS, Peer
from benchmarks.proxy.processes import wait_until_ready

__all__ = ["TESTS", "Relaying"]

_IN_STEP = ("--user", "step-us:10000")
"""A token of every stream each 10 ms, all at the same moments: so engines make them."""
_SPREAD = ("--user", "spread-us:10000")
"""The same from a moment on that is each stream's own: as behind many engines. Each event wakes its proxy alone."""
_PACED_1_S = ("--user", "gap-us:1000000")
_EVENTS = ("--stream", "--expect", "64", "--tokens", "64", "--conns", "32")
_HELD = 1000
"""Streams that are open at once while memory is measured."""

TESTS = {
    "chat": "cpu_us_per_req",
    "stream": "cpu_us_per_event",
    "spread": "cpu_us_per_event",
    "hold": "kb_per_stream",
}
"""Each test's figure, as the load client calls it."""
_TARGETS: Mapping[str, Mapping[str, float]] = {
    "chat": {"aiohttp": 0.5, "envoy": 1.0, "sglang-router": 0.85, "litellm": 0.01},
    "stream": {"envoy": 1.0, "aiohttp": 0.55},
    "spread": {"envoy": 1.0},
    "hold": {},
}
"""Our figure over each peer's, at most."""
_HOLD_TARGET_KB = 25


class Proxy(NamedTuple):
    """One proxy that was started."""

    peer: Peer
    url: str
    pid: int


class Relaying:
    """The proxies, and what was measured of them."""

    def __init__(self, bench: Bench, tests: Collection[str]) -> None:
        """Start all that any of `tests` needs."""
        self._bench = bench
        self._tests = [test for test in TESTS if test in tests]
        self._proxies = self._start()
        self._results: dict[tuple[str, str], list[float]] = {}
        """(test, peer) to one figure a repeat."""

    def _start(self) -> list[Proxy]:
        if not self._tests:
            return []
        bench, started = self._bench, []
        upstream = bench.mock("--gap-us", "10000")
        for peer in PEERS:
            if not any(_asked(bench.effort, peer, test) for test in self._tests):
                continue
            if not peer.installed:
                print(f"{peer.name}: not installed, left out (python -m benchmarks.proxy --install)", file=sys.stderr)
                continue
            port = next(bench.ports)
            argv = peer.command(port, upstream, bench.processes.folder)
            pid = bench.processes.start(argv, bench.proxy_core, env=peer.env, name=peer.name)
            started.append(Proxy(peer, f"http://127.0.0.1:{port}/v1/chat/completions", pid))
        return started

    def wait(self) -> None:
        """Wait for all; what does not start is said, and left out."""
        running = []
        for proxy in self._proxies:
            if wait_until_ready(proxy.url, CHAT, proxy.peer.boot_s):
                running.append(proxy)
            else:
                log = self._bench.processes.folder / f"{proxy.peer.name}.log"
                self._bench.fail(f"{proxy.peer.name}: did not start, see {log}")
        self._proxies = running

    def memory(self) -> None:
        """Measure the memory of open streams, once."""
        self._round([test for test in self._tests if test == "hold"])

    def rounds(self) -> list[Bar]:
        """Go round the proxies as often as the effort says, print the medians, and compare ours with the others'."""
        for _ in range(self._bench.effort.repeats):
            self._round([test for test in self._tests if test != "hold"])
        for (test, name), runs in sorted(self._results.items()):
            spread = f"({min(runs):.1f}..{max(runs):.1f})"
            print(f"{test:7} {name:14} {statistics.median(runs):8.1f} {spread} {TESTS[test]}")
        for test in self._tests:
            able = [proxy.peer for proxy in self._proxies if test in proxy.peer.tests]
            skipped = [peer.name for peer in able if not _asked(self._bench.effort, peer, test)]
            if skipped:
                print(f"left out of --quick: {test} behind {', '.join(skipped)}, which no bar is about")
        return _bars(self._results)

    def _round(self, tests: Sequence[str]) -> None:
        for test in tests:
            for proxy in self._proxies:
                if _asked(self._bench.effort, proxy.peer, test):
                    figure = _figure(self._bench, proxy, test)
                    if figure is not None:
                        self._results.setdefault((test, proxy.peer.name), []).append(figure)


def _asked(effort: Effort, peer: Peer, test: str) -> bool:
    """Whether `peer` is measured in `test`."""
    return test in peer.tests and (effort.all_peers or peer.name == "trimtab" or peer.name in _TARGETS[test])


def _figure(bench: Bench, proxy: Proxy, test: str) -> float | None:
    """Run `test` once through `proxy`; None, and said why, where it does not count."""
    options = ["--header", "Authorization: Bearer sk-none", "--proc", f"proxy={proxy.pid}", *_options(bench, test)]
    result = bench.load(proxy.url, options)
    if not _answers(result):  # a machine that stands still may do so for as long as is measured
        print(f"{proxy.peer.name} {test}: nothing was answered in time, once more", file=sys.stderr)
        result = bench.load(proxy.url, options)
    wrong = {key: result[key] for key in ("bad_status", "bad_body", "errors") if result.get(key)}
    if wrong or not _answers(result):
        bench.fail(f"{proxy.peer.name} {test}: not counted: {wrong or 'no answers'}")
        return None
    if test == "hold" and result["held"] != _HELD:
        bench.fail(f"{proxy.peer.name} hold: only {result['held']} of {_HELD} streams came about")
        return None
    return float(result["proxy"][TESTS[test]])


def _answers(result: Mapping[str, Any]) -> int:
    """How many requests ended well, or streams that are held began."""
    return int(result.get("ok", 0) or result.get("held", 0))


def _options(bench: Bench, test: str) -> list[str]:
    """What the load client is told for `test`."""
    effort = bench.effort
    match test:
        case "chat":
            return ["--conns", "32", *effort.chat.options()]
        case "hold":
            held = ["--stream", "--tokens", "600", "--conns", str(_HELD), "--hold", f"{effort.hold_s:g}"]
            return [*held, *_PACED_1_S]
        case _:
            return [*_EVENTS, *effort.stream.options(), *(_IN_STEP if test == "stream" else _SPREAD)]


def _bars(results: Mapping[tuple[str, str], Sequence[float]]) -> list[Bar]:
    """Compare the medians."""
    bars = []
    for test, targets in _TARGETS.items():
        for peer, target in targets.items():
            ours, theirs = results.get((test, "trimtab")), results.get((test, peer))
            if ours and theirs:
                ratio = statistics.median(ours) / statistics.median(theirs)
                unit = "request" if test == "chat" else "event"
                bars.append(Bar.below(f"{test}: CPU per {unit} against {peer}", ratio, target))
    if held := results.get(("hold", "trimtab")):
        bars.append(Bar.below("hold: KB per open stream of 1,000", statistics.median(held), _HOLD_TARGET_KB))
    return bars
