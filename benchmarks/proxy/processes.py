"""Start, pin and stop the processes of one benchmark run; build the native mock and load client."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["CACHE", "Processes", "alone", "mock_counts", "native", "wait_until_ready"]

CACHE = Path(os.environ.get("TRIMTAB_CACHE", Path.home() / ".cache" / "trimtab"))
_LOOK_S = 0.05
"""Between two looks at whether a server answers."""


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait until no other run measures on this machine: two would share cores, and ports."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "measuring").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another measurement to end", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def native() -> Path:
    """Build the mock and the load client where needed and return the folder they are in."""
    folder = CACHE / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).parent.parent / "native"
    subprocess.run(["make", "-s", "-C", str(source), f"OUT={folder}"], check=True)
    return folder


def wait_until_ready(url: str, body: bytes, seconds: float) -> bool:
    """POST `body` until it is answered with 200."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-none"}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
                if answer.status == 200:
                    return True
        except OSError:
            time.sleep(_LOOK_S)
    return False


def _on(core: str | None) -> list[str]:
    """Return what a command line begins with to run on `core`, or on any."""
    return [] if core is None else ["taskset", "-c", core]


class Processes:
    """Child processes, each in a session of its own and pinned to cores; all stopped on exit.

    What they wrote is in `folder`, which is removed then unless something went wrong.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trimtab-bench-"))
        self.keep = False
        """Whether the folder stays though nothing was raised: there is something in it to look at."""
        self._children: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for child in self._children:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
        for child in self._children:
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        if exc is None and not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, argv: Sequence[str], core: str | None, *, env: Mapping[str, str] | None = None, name: str) -> int:
        """Start `argv` on `core` (None for any), log to a file named after it, and return its pid."""
        with (self.folder / f"{name}.log").open("w") as log:
            child = subprocess.Popen(
                [*_on(core), *argv],
                env={**os.environ, **(env or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        # The kernel groups tasks by session: favour ours over whatever else the machine does.
        # Where that is not allowed the runs are noisier, and the ratios stand.
        with contextlib.suppress(OSError):
            Path(f"/proc/{child.pid}/autogroup").write_text("-19")
        self._children.append(child)
        return child.pid

    def load(self, folder: Path, url: str, arguments: Sequence[str], core: str | None) -> dict[str, Any]:
        """Run the load client to its end on `core` (None for any) and return what it measured."""
        argv = [*_on(core), str(folder / "load"), "--url", url, *arguments]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
        if not done.stdout:
            raise SystemExit(f"the load client said: {done.stderr.strip()[-400:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result


def mock_counts(port: int) -> dict[str, Any]:
    """Return the mock's counters since the last call, and clear them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/mock/stats?reset=1", timeout=10) as answer:
        counts: dict[str, Any] = json.load(answer)
    return counts
