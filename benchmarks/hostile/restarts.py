"""Servers that die and come back: how soon they are used again, and whom it costs an answer.

Each cell is a number of servers and an event. The same servers are asked directly, through Trimtab and, where they
are installed, through HAProxy and Envoy as they come, all at once, in four ways: chats, streams, embeddings that are
merged, and tunnels. With one server the event is its; with more it is the first's, and in a rolling restart
everybody's, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.hostile.restart_callers import WAYS, Caller
from benchmarks.proxy.peers import ENVIRONMENTS

__all__ = ["measure"]

_SOON_S = 1.0
_WARM_S = 1.0
_AFTER_S = 2.5
_AT_ONCE = 3
"""Cells that run side by side: they mostly sleep."""
_BOOT_S = 120.0


class Event(NamedTuple):
    """What happens to a server."""

    name: str
    down_s: float = 0.0
    options: tuple[str, ...] = ()
    """How it is started again."""
    signal: int = signal.SIGKILL
    loads_s: float = 0.0


_KILLED = Event("killed")
_ROLLING = Event("rolling restart", down_s=1.0)
EVENTS = (
    _KILLED,
    Event("killed and 10 s down", down_s=10.0),
    Event("killed and 20 s of 503", options=("--load-s", "20"), loads_s=20.0),
    Event("killed and 20 s of silence", options=("--load-s", "20", "--silent"), loads_s=20.0),
    Event("frozen 12 s", down_s=12.0, signal=signal.SIGSTOP),
    Event("port closed 5 s", signal=signal.SIGUSR2, down_s=5.0),
    Event("half a head", signal=signal.SIGUSR1, down_s=0.5),
    _ROLLING,
)


class Front(NamedTuple):
    """One way to the servers."""

    name: str
    ports: tuple[int, ...]
    callers: list[Caller]


class Servers:
    """The servers of one cell, which can be started again on their ports."""

    def __init__(self, count: int) -> None:
        self.ports = _free_ports(count)
        self._children: list[subprocess.Popen[bytes] | None] = [None] * count

    def start(self, index: int, options: Sequence[str] = ()) -> None:
        """Start one, or start it again."""
        self.end(index)
        command = [sys.executable, "-m", "benchmarks.hostile.restarting", "--port", str(self.ports[index]), *options]
        self._children[index] = subprocess.Popen(command)

    def send(self, index: int, number: int) -> None:
        """Send one a signal."""
        child = self._children[index]
        assert child is not None
        child.send_signal(number)

    def end(self, index: int) -> None:
        """Kill one, however it is, and wait until it is gone."""
        child = self._children[index]
        if child is not None:
            child.kill()
            child.wait()

    def stop(self) -> None:
        """Kill all."""
        for index in range(len(self.ports)):
            self.end(index)


def measure(quick: bool) -> list[Bar]:
    """Run the cells. With `quick` two of them, which take about five seconds."""
    cells = [(_KILLED, 1), (_KILLED, 2)] if quick else [(event, count) for event in EVENTS for count in (1, 2, 8)]
    for name, there in (("HAProxy", _haproxy()), ("Envoy", _envoy())):
        if there is None:
            print(f"{name} is not installed: left out")
    found = asyncio.run(_all(cells, at_once=2 if quick else _AT_ONCE))
    return [bar for bars in found for bar in bars]


async def _all(cells: list[tuple[Event, int]], at_once: int) -> list[list[Bar]]:
    turn = asyncio.Semaphore(at_once)

    async def one(event: Event, count: int) -> list[Bar]:
        async with turn:
            return await _cell(event, count)

    # The longest first, so that they do not stand at the end alone.
    order = sorted(range(len(cells)), key=lambda index: -cells[index][0].down_s - cells[index][0].loads_s)
    tasks = {index: asyncio.create_task(one(*cells[index])) for index in order}
    return [await tasks[index] for index in range(len(cells))]


async def _cell(event: Event, count: int) -> list[Bar]:
    """Let one event happen and tell how each front came through it."""
    servers = Servers(count)
    children: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for index in range(count):
                servers.start(index)
            fronts = [Front("direct", servers.ports, [])]
            for name, command in (("trimtab", _trimtab), ("haproxy", _haproxy()), ("envoy", _envoy())):
                if command is not None:
                    port, admin = _free_ports(2)
                    words = command(port, admin, servers.ports, Path(folder))
                    log = (Path(folder) / f"{name}.log").open("wb")
                    children.append(subprocess.Popen(words, stdout=log, stderr=log))
                    fronts.append(Front(name, (port,), []))
            for front in fronts:
                await asyncio.gather(*[_until_answered(port) for port in front.ports])
            return await _under_load(event, servers, fronts)
        finally:
            for child in children:
                child.terminate()
            servers.stop()
            for child in children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
                child.kill()
                child.wait()


async def _under_load(event: Event, servers: Servers, fronts: list[Front]) -> list[Bar]:
    for front in fronts:
        for number, way in enumerate(WAYS * 2):
            front.callers.append(Caller(front.ports[number % len(front.ports)], way))
    tasks = [asyncio.create_task(caller.run()) for front in fronts for caller in front.callers]
    try:
        await asyncio.sleep(_WARM_S)
        began = time.monotonic()
        well_at = began
        for index in range(len(servers.ports) if event is _ROLLING else 1):
            well_at = await _happen(event, servers, index)
        await asyncio.sleep(_AFTER_S)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return _bars(event, len(servers.ports), fronts, began, well_at)


async def _happen(event: Event, servers: Servers, index: int) -> float:
    """Let `event` come over one server. Returns when that one was well again (monotonic seconds)."""
    servers.send(index, event.signal)
    await asyncio.sleep(event.down_s)
    if event.signal == signal.SIGSTOP:
        servers.send(index, signal.SIGCONT)
    elif event.signal != signal.SIGUSR2:
        servers.start(index, event.options)
        await asyncio.sleep(event.loads_s)
    await _until_answered(servers.ports[index])
    return time.monotonic()


def _bars(event: Event, count: int, fronts: list[Front], began: float, well_at: float) -> list[Bar]:
    cell, told = f"{event.name}, {count} server{'s' * (count > 1)}", []
    found = {}
    for front in fronts:
        asked = [each for caller in front.callers for each in caller.asked if each.over >= began]
        soon = max(_first_good(front, way, well_at) for way in WAYS)
        found[front.name] = (soon, sum(not each.well for each in asked))
        when = f"{soon:.2f} s" if soon < _AFTER_S else f"none within {_AFTER_S} s"
        told.append(f"{front.name} {when}, {found[front.name][1]} of {len(asked)} failed")
    print(f"  {cell}: {'; '.join(told)}", flush=True)
    soon, failed = found["trimtab"]
    return [
        Bar.below(f"{cell}: s until every way had a good answer", round(soon, 3), _SOON_S),
        Bar.below(f"{cell}: failed requests, beside those of going direct", failed, found["direct"][1]),
    ]


def _first_good(front: Front, way: str, well_at: float) -> float:
    """Return how long after `well_at` the first good answer to what is asked in `way` was there; inf for never."""
    asked = [each for caller in front.callers if caller.way == way for each in caller.asked]
    return min([each.over - well_at for each in asked if each.well and each.over >= well_at], default=inf)


# -- the fronts --------------------------------------------------------------------------------------------


_Command = Callable[[int, int, tuple[int, ...], Path], list[str]]


def _trimtab(port: int, admin: int, servers: tuple[int, ...], folder: Path) -> list[str]:
    """README's own file, with ports of our own."""
    path = folder / "trimtab.yaml"
    urls = ", ".join(f"http://127.0.0.1:{server}" for server in servers)
    path.write_text(
        f"upstreams: [{urls}]\nslo: {{ttft_ms: 800, tpot_ms: 60}}\n"
        f"listen: {{port: {port}}}\nadmin: {{port: {admin}}}\nlog: {{access: false}}\nstate: {{enabled: false}}\n"
    )
    return [sys.executable, "-m", "proxy.cli", "serve", "-c", str(path)]


def _haproxy() -> _Command | None:
    binary = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        return None

    def command(port: int, admin: int, servers: tuple[int, ...], folder: Path) -> list[str]:
        path = folder / "haproxy.cfg"
        lines = "".join(f"  server s{index} 127.0.0.1:{server} check\n" for index, server in enumerate(servers))
        path.write_text(
            "defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
            f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\nbackend b\n{lines}"
        )
        return [binary, "-f", str(path), "-db"]

    return command


def _envoy() -> _Command | None:
    environment = ENVIRONMENTS["envoy"]
    if not environment.installed:
        return None

    def command(port: int, admin: int, servers: tuple[int, ...], folder: Path) -> list[str]:
        manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
        router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
        route = {"match": {"prefix": "/"}, "route": {"cluster": "c", "timeout": "0s"}}
        listening = {
            "@type": f"{manager}.HttpConnectionManager",
            "stat_prefix": "in",
            "upgrade_configs": [{"upgrade_type": "websocket"}],
            "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
            "http_filters": [{"name": "router", "typed_config": router}],
        }
        points = [{"endpoint": {"address": _address(server)}} for server in servers]
        cluster = {
            "name": "c",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": {"cluster_name": "c", "endpoints": [{"lb_endpoints": points}]},
        }
        filters = [{"name": "http", "typed_config": listening}]
        listener = {"name": "in", "address": _address(port), "filter_chains": [{"filters": filters}]}
        path = folder / "envoy.json"
        path.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
        options = ["--concurrency", "1", "-l", "error", "--disable-hot-restart"]
        return [str(environment.bin / "envoy"), "-c", str(path), *options]

    return command


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _free_ports(count: int) -> tuple[int, ...]:
    """Return ports that were free just now; all of them are taken before any is given back."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = tuple(sock.getsockname()[1] for sock in socks)
    for sock in socks:
        sock.close()
    return ports


async def _until_answered(port: int) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", body, {"Content-Type": "application/json"}
    )

    def once() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    async with asyncio.timeout(_BOOT_S):
        while not await asyncio.to_thread(once):  # noqa: ASYNC110 - another process tells nobody
            await asyncio.sleep(0.02)
