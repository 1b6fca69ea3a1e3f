"""What a request costs in instructions, which stay put where CPU time moves with the machine's mood.

    python -m benchmarks.proxy.instructions [trimtab] [aiohttp] [--stream]

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

from benchmarks.bars import Bar
from benchmarks.proxy.peers import PEERS
from benchmarks.proxy.processes import Processes, native, wait_until_ready

__all__ = ["instruction_bars", "instructions"]

FEW, MANY = 200, 1000
_CONNECTIONS = 8
_BODY = b'{"model":"mock","messages":[{"role":"user","content":"hi"}]}'
_SUMMARY = re.compile(r"^summary: (\d+)", re.MULTILINE)


def instructions(
    command: Callable[[int, int, Path], list[str]], first_port: int, *, stream: bool = False, quick: bool = False
) -> float:
    """Return the instructions of one request (or of one event of a stream) through the proxy `command` starts."""
    counts = (FEW, MANY) if not stream else (16, 80)
    if quick:
        counts = (counts[0] // 2, counts[1] // 2)

    def counted(index: int) -> tuple[int, int]:
        upstream, port = first_port + 2 * index, first_port + 2 * index + 1
        with Processes() as processes:
            processes.start([str(native() / "mock"), "--port", str(upstream)], "0", name="mock")
            return _run(processes, command, upstream, port, counts[index], stream=stream)

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
    *,
    stream: bool,
) -> tuple[int, int]:
    """Return instructions and requests (events) of one run."""
    out = processes.folder / f"count-{wanted}"
    valgrind = ["valgrind", "-q", "--tool=cachegrind", "--cache-sim=no", f"--cachegrind-out-file={out}"]
    valgrind.append(f"--log-file={out}.log")
    argv = command(port, upstream, processes.folder)
    if (config := Path(argv[-1])).suffix == ".yaml" and "pools:" in (text := config.read_text()):
        config.write_text(text.replace("state: {", "state: {enabled: false, ") + "    tick_s: 60\n")
    pid = processes.start([*valgrind, *argv], None, env={"PYTHONHASHSEED": "0"}, name="counted")
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    if not wait_until_ready(url, _BODY, 120):
        raise SystemExit(f"did not start, see {processes.folder}")
    options = ["--conns", str(_CONNECTIONS), "--warm", "0", "--secs", "300", "--count", str(wanted)]
    if stream:
        options += ["--stream", "--expect", "64", "--tokens", "64", "--user", "gap-us:10000"]
    result = processes.load(native(), url, options, "0")
    os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + 60
    while not out.exists() or not _SUMMARY.search(out.read_text()):
        if time.monotonic() > end:
            raise SystemExit(f"did not stop, see {processes.folder}")
        time.sleep(0.2)
    found = _SUMMARY.search(out.read_text())
    assert found is not None
    return int(found[1]), int(result["ok"]) * (64 if stream else 1)


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
    parser.add_argument("--stream", action="store_true", help="count events of streams, 10 ms apart")
    parser.add_argument("--port", type=int, default=9700)
    options = parser.parse_args()
    for index, peer in enumerate(peer for peer in PEERS if peer.name in options.peers):
        cost = instructions(peer.command, options.port + 10 * index, stream=options.stream)
        print(f"{peer.name:14} {cost:10.0f}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
