"""What a request costs in instructions, which stay put where CPU time moves with the machine's mood.

    python -m benchmarks.proxy.instructions [trimtab] [aiohttp] [--stream | --merge]

Callgrind counts user-mode instructions; what the kernel does for system calls is not in it. It begins to count when
the proxy has started and served some requests. Then few are sent, and many: what sending costs at its two ends,
whatever it is, falls out of the difference. What happens once a second is no request's, and under valgrind seconds
come fifty times as often, so Trimtab's controller ticks once a minute and nothing is written down.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from shutil import which
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.proxy.peers import PEERS, trimtab_merge
from benchmarks.proxy.processes import Processes, native, wait_until_ready

__all__ = ["instruction_bars", "instructions"]

_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)
_SETTLE_S = 0.2
"""When the client has what it wanted it goes, and what it had in flight is still to end."""


class Work(NamedTuple):
    """What is sent: requests to a path by so many connections, few at first and many after."""

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


class _Counted:
    """A process under callgrind, which says how many instructions it took since it was asked before."""

    def __init__(self, processes: Processes, argv: Sequence[str], name: str) -> None:
        """Start it; nothing is counted until `begin`, which makes starting several times as fast."""
        self._out = processes.folder / f"{name}.callgrind"
        self._parts = count(1)
        options = ["-q", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self._out}"]
        self._pid = processes.start(["valgrind", *options, *argv], None, env={"PYTHONHASHSEED": "0"}, name=name)

    def begin(self) -> None:
        """Count from now on. Raises SystemExit where valgrind cannot be reached."""
        self._order("instrumentation", "on")

    def taken(self) -> int:
        """Return what it took since `begin` or since this was asked before. Raises SystemExit, as `begin` does."""
        time.sleep(_SETTLE_S)
        self._order("dump")
        part = self._out.with_name(f"{self._out.name}.{next(self._parts)}")
        found = _TOTALS.search(part.read_text())
        if found is None:
            raise SystemExit(f"callgrind wrote no totals into {part}")
        return int(found[1])

    def end(self) -> None:
        """Stop it at once: what it would write at the end is not wanted."""
        os.kill(self._pid, signal.SIGKILL)

    def _order(self, *words: str) -> None:
        """Have valgrind do something while its process runs; it has been done when this returns."""
        argv = ["vgdb", f"--pid={self._pid}", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(argv)}: {(done.stderr or done.stdout).strip()[-400:]}")


def instructions(
    command: Callable[[int, int, Path], list[str]], first_port: int, *, work: Work = _CHAT, share: float = 1.0
) -> float:
    """Return the instructions of one request (or of one event of a stream) through the proxy `command` starts.

    `share` is how much of the work is done. Raises SystemExit where the proxy or valgrind does not do its part.
    """
    upstream, port = first_port, first_port + 1
    tools = native()
    with Processes() as processes:
        processes.start([str(tools / "mock"), "--port", str(upstream)], None, name="mock")
        argv = command(port, upstream, processes.folder)
        if (config := Path(argv[-1])).suffix == ".yaml" and "pools:" in (text := config.read_text()):
            config.write_text(text.replace("state: {", "state: {enabled: false, ") + "    tick_s: 60\n")
        counted = _Counted(processes, argv, "counted")
        url = f"http://127.0.0.1:{port}{work.path}"
        if not wait_until_ready(url, work.body, 120):
            raise SystemExit(f"did not start, see {processes.folder}")

        def send(requests: float) -> int:
            options = ["--conns", str(work.connections), "--warm", "0", "--secs", "300", "--count", f"{requests:.0f}"]
            return int(processes.load(tools, url, [*options, *work.options], None)["ok"]) * work.events

        counted.begin()
        send(work.few * share)
        counted.taken()
        few, fewer = send(work.few * share), counted.taken()
        many, more = send(work.many * share), counted.taken()
        counted.end()
    return (more - fewer) / (many - few)


def instruction_bars(first_port: int, *, share: float = 1.0) -> list[Bar]:
    """Compare a chat through Trimtab, everything on, with one through the plainest aiohttp proxy."""
    if which("valgrind") is None:
        print("instructions: valgrind is not installed, left out", file=sys.stderr)
        return []
    # Half as many of the other's, which are five times as dear and vary less.
    names, shares = ("trimtab", "aiohttp"), (share, share / 2)
    commands = [next(peer.command for peer in PEERS if peer.name == name) for name in names]
    ports = [first_port + 10 * index for index in range(len(names))]
    with ThreadPoolExecutor(len(names)) as pool:
        each = [
            pool.submit(instructions, command, port, share=part)
            for command, port, part in zip(commands, ports, shares, strict=True)
        ]
        counts = [counting.result() for counting in each]
    for name, found in zip(names, counts, strict=True):
        print(f"instructions {name:14} {found:10.0f} a request")
    return [Bar.below("chat: instructions against aiohttp", counts[0] / counts[1], 0.5)]


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
