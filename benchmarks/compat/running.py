"""Start servers and Trimtab in front of them; stop everything again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.compat.exchange import Ask, ask
from benchmarks.compat.server import ROOT, Place, Server

__all__ = ["DidNotStart", "serving", "trimtab"]

_SPARE = 4
_SLO = {"ttft_ms": 800, "tpot_ms": 60}
_GRACE_S = 15


class DidNotStart(RuntimeError):
    """A server ended, or was not ready in time; with the end of what it wrote."""


@contextlib.contextmanager
def serving(server: Server, folder: Path) -> Iterator[str]:
    """Run `server`; yields its URL once it is ready. Raises DidNotStart."""
    home = Path(tempfile.mkdtemp(prefix=f"{server.name}-", dir=folder))
    port, *spare = _free_ports(1 + _SPARE)
    argv = server.command(Place(port, tuple(spare), home))
    with _process(argv, home, server.environ()) as process:
        url = f"http://127.0.0.1:{port}"
        _wait(server, url, process, home / "log")
        yield url


@contextlib.contextmanager
def trimtab(server: Server, upstream: str, folder: Path, *, slo: bool = False) -> Iterator[tuple[str, str]]:
    """Run Trimtab in front of `upstream`; yields its URL and that of its admin API.

    With `slo` its configuration is the README's: the upstream and an SLO, and not a word of this server.
    """
    home = Path(tempfile.mkdtemp(prefix="trimtab-", dir=folder))
    pool = {"name": server.name, "upstreams": [{"url": upstream, "profile": server.profile}], **server.pool}
    what = {"upstreams": [upstream], "slo": _SLO} if slo else {"pools": [pool]}
    config = {"listen": {"port": 0}, "admin": {"port": 0}, "log": {"access": False}, **what}
    file = home / "trimtab.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    argv = [sys.executable, "-m", "proxy.cli", "serve", "-c", str(file), "--set", "drain.grace_s=0"]
    with _process(argv, home, {**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        end = time.monotonic() + 30
        while time.monotonic() < end and process.poll() is None:
            said = dict(re.findall(r"^(proxy|admin) +(http://127\.0\.0\.1:\d+)", (home / "log").read_text(), re.M))
            if "admin" in said:
                break
            time.sleep(0.05)
        else:
            raise DidNotStart(f"trimtab: {_tail(home / 'log')}")
        yield said["proxy"], said["admin"]


@contextlib.contextmanager
def _process(argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in `folder`, in a session of its own, its output in `log`; end all of the session on exit."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            argv, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            # Its leader may have gone and left workers behind: the group is what is signalled.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)


def _wait(server: Server, url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return once it answers. Raises DidNotStart."""
    questions = [Ask("ready", "GET", server.ready)] if server.warm is None else [server.warm]
    end = time.monotonic() + server.boot_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise DidNotStart(f"{server.name} ended with {process.returncode}: {_tail(log)}")
        with contextlib.suppress(OSError):
            if all(ask(url, question).status == 200 for question in questions):
                return
        time.sleep(0.3)
    raise DidNotStart(f"{server.name} was not ready within {server.boot_s:.0f} s: {_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-12:])


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
