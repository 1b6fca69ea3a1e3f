"""What a request costs in instructions, which stay put where CPU time moves with the machine's mood.

    python -m benchmarks.proxy.instructions [trimtab] [aiohttp] [--stream | --merge]

Cachegrind counts user-mode instructions; what the kernel does for system calls is not in it. Each proxy is run
twice, with few and with many requests, so that starting up falls out of the difference. What happens once a second
is no request's, and under valgrind seconds come fifty times as often, so Trimtab's controller ticks once a minute;
and what is written down at the end is longer after many requests than after few, so nothing is.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import which
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.proxy.peers import PEERS, trimtab_merge
from benchmarks.proxy.processes import Processes, native, wait_until_ready

__all__ = ["instruction_bars", "instructions"]

_SUMMARY = re.compile(r"^summary: (\d+)", re.MULTILINE)


class Work(NamedTuple):
    """What is sent: requests to a path, so many by so many connections, in a run with few and in one with many."""

    path: str
    body: bytes
    connections: int
    few: int
    many: int
    options: tuple[str, ...] = ()
    events: int = 1
    """How many each request counts as."""


_CHAT = Work("/v1/chat/completions", b'{"model":"mock","messages":[{"role":"user","content":"hi"}]}', 8, 200, 1000)
_STREAM = _CHAT._replace(
    few=16, many=80, events=64, options=("--stream", "--expect", "64", "--tokens", "64", "--user", "gap-us:10000")
)
_EMBEDDING = b'{"model": "mock", "input": "a sentence of some forty characters, so."}'
_MERGED = Work("/v1/embeddings", _EMBEDDING, 64, 640, 3200, ("--body", _EMBEDDING.decode()))
"""Twice as many clients as go into a call, so that every call is full."""
_SLOW_WINDOW_MS = 5000
"""Under valgrind a batch takes a fraction of a second to fill."""


def instructions(
    command: Callable[[int, int, Path], list[str]], first_port: int, *, work: Work = _CHAT, quick: bool = False
) -> float:
    """Return the instructions of one request (or of one event of a stream) through the proxy `command` starts."""
    counts = (work.few // 2, work.many // 2) if quick else (work.few, work.many)

    def counted(index: int) -> tuple[int, int]:
        upstream, port = first_port + 2 * index, first_port + 2 * index + 1
        with Processes() as processes:
            processes.start([str(native() / "mock"), "--port", str(upstream)], "0", name="mock")
            return _run(processes, command, upstream, port, counts[index], work)

    native()
    with ThreadPoolExecutor(2) as pool:
        (low, low_done), (high, high_done) = pool.map(counted, (0, 1))
    return (high - low) / (high_done - low_done)


def _run(
    processes: Processes,
    command: Callable[[int, int, Path], list[str]],
    upstream: int,
    port: int,
    wanted: int,
    work: Work,
) -> tuple[int, int]:
    """Return instructions and requests (events) of one run."""
    out = processes.folder / f"count-{wanted}"
    valgrind = ["valgrind", "-q", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out}"]
    valgrind.append(f"--log-file={out}.log")
    argv = command(port, upstream, processes.folder)
    if (config := Path(argv[-1])).suffix == ".yaml" and "pools:" in (text := config.read_text()):
        config.write_text(text.replace("state: {", "state: {enabled: false, ") + "    tick_s: 60\n")
    pid = processes.start([*valgrind, *argv], None, env={"PYTHONHASHSEED": "0"}, name="counted")
    url = f"http://127.0.0.1:{port}{work.path}"
    if not wait_until_ready(url, work.body, 120):
        raise SystemExit(f"did not start, see {processes.folder}")
    options = ["--conns", str(work.connections), "--warm", "0", "--secs", "300", "--count", str(wanted)]
    result = processes.load(native(), url, [*options, *work.options], "0")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 60
    while not out.exists() or not _SUMMARY.search(out.read_text()):
        if time.monotonic() > end:
            raise SystemExit(f"did not stop, see {processes.folder}")
        time.sleep(0.2)
    found = _SUMMARY.search(out.read_text())
    assert found is not None
    return int(found[1]), int(result["ok"]) * work.events


def instruction_bars(first_port: int, *, quick: bool = False) -> list[Bar]:
    """Compare a chat through Trimtab, everything on, with one through the plainest aiohttp proxy."""
    if which("valgrind") is None:
        print("instructions: valgrind is not installed, left out", file=sys.stderr)
        return []
    measured = {}
    for index, name in enumerate(("trimtab", "aiohttp")):
        command = next(peer.command for peer in PEERS if peer.name == name)
        measured[name] = instructions(command, first_port + 10 * index, quick=quick)
        print(f"instructions {name:14} {measured[name]:10.0f} a request")
    return [Bar.below("chat: instructions against aiohttp", measured["trimtab"] / measured["aiohttp"], 0.5)]


def main() -> int:
    """Print the instructions of the proxies named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", nargs="*", default=["trimtab", "aiohttp"])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--stream", action="store_true", help="count events of streams, 10 ms apart")
    kind.add_argument("--merge", action="store_true", help="count embeddings that Trimtab merges, 32 in a call")
    parser.add_argument("--port", type=int, default=9700)
    options = parser.parse_args()
    if options.merge:
        print(f"trimtab        {instructions(trimtab_merge(_SLOW_WINDOW_MS), options.port, work=_MERGED):10.0f}")
        return 0
    work = _STREAM if options.stream else _CHAT
    for index, peer in enumerate(peer for peer in PEERS if peer.name in options.peers):
        print(f"{peer.name:14} {instructions(peer.command, options.port + 10 * index, work=work):10.0f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
