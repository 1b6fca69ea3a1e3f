"""The product as people start it: `trimtab` and a mock upstream as processes of their own, on free ports."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.worker_process import ROOT, eventually

__all__ = [
    "Trimtab",
    "Up",
    "children",
    "environment",
    "gone",
    "listens",
    "mock_upstream",
    "resident_mb",
    "run_to_its_end",
    "samples",
]

COMMAND = (sys.executable, "-m", "proxy.cli")
ANY_PORTS = ("--port", "0", "--admin-port", "0")
_PATIENCE_S = 60.0
_URL = r"http://127\.0\.0\.1:\d+"


def environment() -> dict[str, str]:
    """Return this process's environment without settings that would change what is tested."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("TRIMTAB_")}
    return {**clean, "PYTHONPATH": str(ROOT)}


class Trimtab:
    """A started `trimtab serve` or `trimtab up`. What it writes goes to files in `folder`, which is also its cwd."""

    def __init__(self, folder: Path, *arguments: str, command: Sequence[str] = COMMAND) -> None:
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, *arguments, *ANY_PORTS, "--set", "drain.grace_s=0"],
                cwd=folder, env=environment(), stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    @property
    def out(self) -> str:
        """What it has written to stdout so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text()

    def says(self, pattern: str, where: str = "err") -> str:
        """Wait until it has written something that matches, and return the first group."""
        found: list[str] = []

        def said() -> bool:
            match = re.search(pattern, getattr(self, where), re.MULTILINE)
            found.extend(match.groups() if match else ())
            assert match or self.process.poll() is None, f"it ended with {self.process.returncode}: {self.err}"
            return match is not None

        eventually(said, within_s=_PATIENCE_S)
        return found[0]

    @property
    def proxy(self) -> str:
        """The data plane's URL, as `serve` says it."""
        return self.says(rf"^proxy +({_URL})")

    @property
    def admin(self) -> str:
        """The admin API's URL, as `serve` says it."""
        return self.says(rf"^admin +({_URL})")

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Ask the admin API; return status and document."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.admin + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=_PATIENCE_S) as response:
                return response.status, json.load(response)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def pool(self, change: str = "GET", path: str = "", body: Any = None, name: str = "default") -> dict[str, Any]:
        """Look at a pool, or change it; what comes back must be a success."""
        status, document = self.request(change, f"/admin/v1/pools/{name}{path}", body)
        assert status == 200, document
        return dict(document)

    def metrics(self) -> dict[str, float]:
        """Scrape the proxy."""
        return samples(self.admin)

    def hang_up(self) -> None:
        """Ask it to read its configuration again."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; return the exit code."""
        self.process.send_signal(how)
        return self.process.wait(_PATIENCE_S)

    def kill(self) -> None:
        """End it by force if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    @classmethod
    @contextlib.contextmanager
    def serve(cls, folder: Path, *arguments: str, command: Sequence[str] = COMMAND) -> Iterator[Trimtab]:
        """Run `trimtab serve`; it listens when this yields."""
        running = cls(folder, "serve", *arguments, command=command)
        try:
            assert running.admin
            yield running
        finally:
            running.kill()


class Up(Trimtab):
    """A started `trimtab up` with a small demo worker."""

    WORKER = ("--num-blocks", "256", "--max-num-seqs", "16", "--threads", "1")

    def __init__(self, folder: Path, *arguments: str) -> None:
        worker = (f"--worker-arg={argument}" for argument in self.WORKER)
        super().__init__(folder, "up", *worker, *arguments)

    @property
    def proxy(self) -> str:
        return self.says(rf"OpenAI API +({_URL})", "out")

    @property
    def admin(self) -> str:
        return self.says(rf"metrics +({_URL})/metrics", "out")

    @property
    def worker(self) -> str:
        """The worker's own URL."""
        return self.says(rf"worker +({_URL})", "out")

    def wait_ready(self) -> None:
        """Return once it says that it is ready."""
        self.says("(Ctrl-C stops everything)", "out")


@contextlib.contextmanager
def mock_upstream(port: int = 0) -> Iterator[str]:
    """Run the fault-injecting mock as a process; yield its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.mock_upstream", "--port", str(port)],
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = re.search(_URL, process.stdout.readline())
        assert found
        yield found.group()
    finally:
        process.kill()
        process.communicate()


def run_to_its_end(folder: Path, *arguments: str, **more: str) -> tuple[int, str, str]:
    """Run a `trimtab` that is expected to end by itself; return (exit code, stdout, stderr)."""
    done = subprocess.run(
        [*COMMAND, *arguments], cwd=folder, env={**environment(), **more},
        capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def samples(base: str) -> dict[str, float]:
    """Scrape `base`/metrics; return every sample's value, summed over its labels."""
    with urlopen(f"{base}/metrics", timeout=_PATIENCE_S) as response:
        text = response.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if "le" not in sample.labels:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def listens(url: str) -> bool:
    """Return whether anybody accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def children(pid: int) -> list[int]:
    """Return every descendant of a process that lives."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end between the listing and the look.
        with contextlib.suppress(OSError):
            parents.setdefault(_stat(stat)[1], []).append(int(stat.parent.name))
    found, left = [], [pid]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


def gone(pid: int) -> bool:
    """Return whether a process has ended; a zombie that nobody reaped yet has."""
    try:
        return _stat(Path(f"/proc/{pid}/stat"))[0] == "Z"
    except OSError:
        return True


def resident_mb(pid: int) -> float:
    """Return a process's resident memory in megabytes (10^6 bytes)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) * 1024 / 1e6


def _stat(file: Path) -> tuple[str, int]:
    """Return a process's state and parent; its name, which comes before, may contain anything."""
    state, parent = file.read_text().rpartition(")")[2].split()[:2]
    return state, int(parent)
