"""The bundled worker as a process of its own, for end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["WorkerProcess", "eventually", "run_worker_to_its_end", "started_worker"]

ROOT = Path(__file__).resolve().parents[2]


def _command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "backend", *flags]


class WorkerProcess:
    """A started worker in a process group of its own. `listening` and `ready` are the announcements it printed."""

    def __init__(self, *flags: str) -> None:
        self.process = subprocess.Popen(
            _command("--port", "0", "--threads", "1", *flags),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.listening = self._event("listening")
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> None:
        """Return once the model is loaded."""
        self.ready = self._event("ready")

    def _event(self, name: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise RuntimeError(f"the worker ended with {self.process.wait()}: {self.process.stderr.read()}")
        event: dict[str, Any] = json.loads(line)
        assert event["event"] == name
        return event

    @property
    def url(self) -> str:
        return str(self.listening["url"])

    def status(self, path: str) -> int:
        """GET `path`, return the status."""
        try:
            with urlopen(self.url + path, timeout=30) as response:
                return int(response.status)
        except HTTPError as error:
            return error.code

    def metrics(self) -> dict[str, float]:
        """Return the unlabelled view of /metrics: sample name -> value (histogram buckets left out)."""
        with urlopen(self.url + "/metrics", timeout=30) as response:
            text = response.read().decode()
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if "le" not in sample.labels and "finished_reason" not in sample.labels
        }

    def wait(self, timeout_s: float = 60.0) -> tuple[int, str]:
        """Wait for its end and return (exit code, stderr)."""
        _, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, err

    def kill(self) -> None:
        """End it by force if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def started_worker(*flags: str) -> Iterator[WorkerProcess]:
    """A worker that is ready, and gone afterwards."""
    worker = WorkerProcess(*flags)
    try:
        worker.wait_ready()
        yield worker
    finally:
        worker.kill()


def run_worker_to_its_end(*flags: str) -> tuple[int, str, str]:
    """Run a worker that is expected to end by itself; return (exit code, stdout, stderr)."""
    done = subprocess.run(_command(*flags), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


def eventually(holds: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Poll another process until `holds`; an AssertionError after `within_s` (a hang, not a performance bound)."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, "the expected state was not reached"
        time.sleep(0.02)
