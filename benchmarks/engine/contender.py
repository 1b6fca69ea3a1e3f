"""A contender: a process that has the model loaded and waits for orders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from benchmarks.engine.workload import Figures, Item

__all__ = ["Contender", "ContenderFailed"]

ROOT = Path(__file__).parent.parent.parent


class ContenderFailed(RuntimeError):
    """It did not start, or ended during a run."""


class Contender:
    """Started on entry, stopped on exit. While it waits for an order it uses no CPU time."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        python: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a module of this package, by this interpreter or another, with more in its environment than in ours."""
        self.name = name
        self._environment = environment or {}
        self._argv = [str(python or sys.executable), "-m", f"benchmarks.engine.{module}", *arguments]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed on exit)
        self._running: subprocess.Popen[str] | None = None

    @property
    def _process(self) -> subprocess.Popen[str]:
        assert self._running is not None, "used outside of its with block"
        return self._running

    @property
    def _orders(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _answers(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def __enter__(self) -> Contender:
        self._running = subprocess.Popen(
            self._argv,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._orders.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def ready(self, within_s: float) -> None:
        """Wait until the model is loaded. Raises ContenderFailed."""
        self._answer("READY", within_s)

    def run(self, items: Sequence[Item], how: str = "continuous", *, within_s: float = 1800) -> Figures:
        """Have `items` served and return what it took. Raises ContenderFailed."""
        self._orders.write(json.dumps({"items": items, "how": how}) + "\n")
        self._orders.flush()
        return Figures(*json.loads(self._answer("RESULT ", within_s)))

    def _answer(self, prefix: str, within_s: float) -> str:
        """The rest of the next line that starts with `prefix`; what libraries print besides is passed over."""
        timer = threading.Timer(within_s, self._process.kill)
        timer.start()
        try:
            for line in self._answers:
                if line.startswith(prefix):
                    return line.removeprefix(prefix)
        finally:
            timer.cancel()
        self._log.seek(0)
        tail = self._log.read().decode(errors="replace").strip().splitlines()[-5:]
        raise ContenderFailed(f"{self.name} ended or took longer than {within_s:.0f} s:\n" + "\n".join(tail))
