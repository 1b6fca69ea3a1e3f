"""When to train, on what, and how to do it without anybody waiting.

A thread packs the rows, talks to the training process and compiles what comes back, in pieces of well under a
millisecond between which it sleeps; the event loop only ever asks whether there is a result.
"""

from __future__ import annotations

import _thread
import importlib.util
import json
import logging
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from controller.predictor.export import EnsembleError
from controller.predictor.model import Group, LengthModel, parse_model
from controller.predictor.reservoir import FADED, Reservoir, Row, Stratum
from controller.predictor.scale import SortedWindow
from controller.predictor.worker import EXTRA_COLUMNS

__all__ = ["Job", "Rejected", "Running", "Trainer", "TrainingProcess", "pack", "sklearn_installed"]

log = logging.getLogger("trimtab.predictor")

HEAD_BYTES = 65_536
"""Room for the header of a training process's input."""

MAX_COUNTED = 1_000
"""(model, tenant) pairs that are looked at for that."""

MAX_GROUPS = 48
"""(model, tenant) pairs with a scale of their own in training; more would keep the event loop too long."""

_ROOT = str(Path(__file__).resolve().parents[2])

COMMAND = (
    sys.executable,
    "-c",
    "import sys; from controller.predictor.worker import main; sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))",
)


@dataclass(frozen=True, slots=True)
class Job:
    """Everything one training needs, taken at one moment."""

    names: tuple[str, ...]
    strata: Sequence[Stratum]
    before: float
    """Only rows admitted before this moment count: of those admitted later only the short ones have finished."""
    groups: Sequence[Group]
    incumbent: LengthModel | None
    limit_s: float
    seed: int
    memory_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Rejected:
    """A training that gave no model that may serve, and why."""

    reason: str


class Running(Protocol):
    """A training under way."""

    def result(self) -> LengthModel | Rejected | None:
        """Return what came of it, None while it runs. Never blocks."""
        ...

    def cancel(self) -> None:
        """Stop it; nothing comes of it."""
        ...


_REST = 19.0
"""Times the duration of a training that must pass before the next."""


class Trainer:
    """Keeps the rows and decides when a training is due.

    Due every `rows` outcomes, or every `every_s` seconds if there were at least 50; never before `min_rows`, and
    never before twice the 99th percentile of the durations has passed since the start: until then the outcomes are
    mostly those of short answers, and a model trained on them would promise short. Between two trainings there is at
    least nineteen times the duration of the last one: a busy pool spends a twentieth of a core on them and no more.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        now: float,
        launch: Callable[[Job], Running] | None = None,
        every_s: float = 600.0,
        rows: int = 1_000,
        min_rows: int = 300,
        limit_s: float = 60.0,
        memory_bytes: int = 1 << 30,
    ) -> None:
        self.names = tuple(names)
        self._launch = launch or TrainingProcess
        self.pace(every_s=every_s, rows=rows, min_rows=min_rows, limit_s=limit_s, memory_bytes=memory_bytes)
        self._started = now
        self._last = now
        self._launched = now
        self._rest_until = now
        self._new = 0
        self._reservoir = Reservoir()
        self._durations = SortedWindow(512)
        self._running: Running | None = None
        self._forced = False
        self.trainings = 0
        self.last_result = "none yet"

    def pace(self, *, every_s: float, rows: int, min_rows: int, limit_s: float, memory_bytes: int) -> None:
        """Change how often it trains, on how many outcomes at least, and what one training may cost."""
        self._every_s = every_s
        self._rows = rows
        self._min_rows = min_rows
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes

    def observe(
        self,
        features: Sequence[float],
        tokens: float,
        *,
        censored: bool,
        model: str,
        tenant: str,
        at: float,
        duration_s: float,
    ) -> None:
        """Take in one outcome."""
        self._durations.add(duration_s)
        self._reservoir.add(features, tokens, censored=censored, model=model, tenant=tenant, at=at)
        self._new += 1

    def poll(
        self, now: float, scales: Callable[[str, str], tuple[float, float]], incumbent: LengthModel | None
    ) -> LengthModel | None:
        """Start a training if one is due, and return its model once it has passed. Cheap when there is nothing.

        `scales` gives the usual length of a (model, tenant) and the scale in service for it, in tokens.
        """
        if self._running is not None:
            return self._finish(now)
        if self._due(now):
            rows: Counter[tuple[str, str]] = Counter()
            for (model, tenant), count in islice(self._reservoir.groups.items(), MAX_COUNTED):
                rows[model, ""] += count
                if tenant:
                    rows[model, tenant] += count
            # Tenants beyond the largest groups are trained on at their model's scale.
            largest = nlargest(MAX_GROUPS, rows.items(), key=itemgetter(1))
            groups = [(*group, *scales(*group), count) for group, count in largest]
            strata = self._reservoir.snapshot({group[0] for group in groups})
            before = now - self._durations.quantile(0.99)
            job = Job(
                self.names, strata, before, groups, incumbent, self._limit_s, self.trainings, self._memory_bytes
            )
            self.trainings += 1
            self._new, self._last, self._launched, self._forced = 0, now, now, False
            self._running = self._launch(job)
        return None

    def resume(self, model: LengthModel) -> None:
        """Go on after `model`, which was trained on outcomes of an earlier run: those to come are all new to it."""
        self._reservoir.start_at(int(model.report.get("through", -1)) + 1)

    def force(self, model: str) -> None:
        """After a drift of `model`: its rows so far count less, and a training is due once there are new ones."""
        self._reservoir.fade(model)
        self._forced = True

    def close(self) -> None:
        """Stop a training that is under way."""
        if self._running is not None:
            self._running.cancel()
            self._running = None

    def snapshot(self) -> dict[str, Any]:
        """Return a JSON-ready summary."""
        return {
            "rows": len(self._reservoir),
            "new_rows": self._new,
            "trainings": self.trainings,
            "training": self._running is not None,
            "last_result": self.last_result,
        }

    def _due(self, now: float) -> bool:
        if len(self._reservoir) < self._min_rows or now < self._rest_until:
            return False
        if now - self._started < 2.0 * self._durations.quantile(0.99):
            return False
        waited = now - self._last >= self._every_s and self._new >= 50
        return self.trainings == 0 or (self._forced and self._new >= 100) or self._new >= self._rows or waited

    def _finish(self, now: float) -> LengthModel | None:
        assert self._running is not None
        result = self._running.result()
        if result is None:
            return None
        self._running = None
        self._last = now
        self._rest_until = now + _REST * (now - self._launched)
        if isinstance(result, Rejected):
            self.last_result = f"kept the old model: {result.reason}"
            log.info("length predictor %s", self.last_result)
            return None
        self.last_result = f"took a model of {result.report.get('rows')} rows"
        log.info("length predictor %s", self.last_result)
        return result


class TrainingProcess:
    """One training in a process of its own, fed and read by a daemon thread."""

    def __init__(self, job: Job, *, command: Sequence[str] | None = None) -> None:
        self._job = job
        self._command = command or COMMAND
        self._process: subprocess.Popen[bytes] | None = None
        self._result: LengthModel | Rejected | None = None
        self._cancelled = threading.Event()
        self.done = threading.Event()
        # Thread.start waits until the thread was given a core, milliseconds on a busy machine; this does not.
        _thread.start_new_thread(self._run, ())

    def result(self) -> LengthModel | Rejected | None:
        """Return what came of it, None while it runs."""
        return self._result if self.done.is_set() else None

    def cancel(self) -> None:
        """Stop the process; its thread ends by itself."""
        self._cancelled.set()
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        self._pause()  # first of all give the lock back to whoever started this
        try:
            self._result = self._train()
        except (OSError, ValueError, EnsembleError) as error:
            self._result = Rejected(f"{type(error).__name__}: {error}")
        except Exception as error:  # whatever it is, the request path must only ever see "no new model"
            log.exception("length training broke")
            self._result = Rejected(f"{type(error).__name__}: {error}")
        finally:
            self.done.set()

    def _train(self) -> LengthModel | Rejected:
        with _scratch() as given, _scratch() as out, _scratch() as err:
            rows = pack(self._job, given, self._pause)
            self._pause()
            if rows < 50:
                return Rejected(f"only {rows} rows of requests that had time to finish")
            status = self._wait_for(given, out, err)
            if status is None:
                return Rejected(f"training took longer than {self._job.limit_s:g} s")
            if status:
                last = _tail(err).strip().splitlines()[-1:] or ["no message"]
                return Rejected(f"the training process ended with status {status}: {last[0]}")
            lines = []
            out.seek(0)
            for index, line in enumerate(out):
                lines.append(line.decode("ascii").rstrip("\n"))
                if index % 32 == 31:
                    self._pause()
            self._pause()
        if len(lines) == 1:
            return Rejected(str(json.loads(lines[0]).get("rejected", "no model")))
        return parse_model(lines, names=self._job.names, pause=self._pause)

    def _wait_for(self, given: BinaryIO, out: BinaryIO, err: BinaryIO) -> int | None:
        """Run the training process to its end and return its status; None when it took too long."""
        path = os.pathsep.join([_ROOT, os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else [_ROOT])
        given.seek(0)
        self._pause()
        with subprocess.Popen(
            self._command,
            stdin=given,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C meant for the proxy is the proxy's to handle
        ) as process:
            self._process = process
            if self._cancelled.is_set():
                process.kill()
            self._pause()
            until = time.monotonic() + self._job.limit_s
            while (status := process.poll()) is None:
                if time.monotonic() >= until:
                    process.kill()
                    return None
                self._cancelled.wait(0.02)
                self._pause()
            return status

    def _pause(self) -> None:
        time.sleep(0.0005)


def pack(job: Job, file: BinaryIO, pause: Callable[[], None]) -> int:
    """Write the training process's input for `job` to `file`, and return its number of rows.

    The header goes last in time and first in place, since only then the rows are counted.
    """
    place = {(group[0], group[1]): float(index) for index, group in enumerate(job.groups)}
    extra = struct.Struct(f"<{len(EXTRA_COLUMNS)}d")
    rows = 0
    file.write(b" " * HEAD_BYTES)
    for stratum in job.strata:
        kept = list(stratum.rows)
        pause()
        for start in range(0, len(kept), 64):
            pieces: list[bytes] = []
            for row in map(Row.read, kept[start : start + 64]):
                if row.at < job.before:
                    group = place.get((stratum.model, row.tenant), place.get((stratum.model, "")))
                    if group is None:
                        continue
                    weight = stratum.weight * (FADED if row.seq < stratum.faded else 1.0)
                    pieces += (row.features, extra.pack(row.tokens, row.censored, row.seq, group, weight))
            rows += len(pieces) // 2
            file.writelines(pieces)
            pause()
    for index, line in enumerate(job.incumbent.lines if job.incumbent else ()):
        file.write(line.encode("ascii") + b"\n")
        if index % 64 == 63:
            pause()
    head = {
        "names": job.names,
        "groups": job.groups,
        "rows": rows,
        "seed": job.seed,
        "cpu_s": int(job.limit_s) + 1,
        "memory_bytes": job.memory_bytes,
    }
    header = json.dumps(head).encode()
    if len(header) >= HEAD_BYTES:
        raise ValueError(f"a header of {len(header)} bytes")
    file.seek(0)
    file.write(header.ljust(HEAD_BYTES - 1) + b"\n")
    file.flush()
    return rows


def _scratch() -> BinaryIO:
    """Return an empty file that is gone once closed: in memory where the system can, else in the temporary folder."""
    if hasattr(os, "memfd_create"):
        return cast(BinaryIO, os.fdopen(os.memfd_create("trimtab-training"), "w+b"))
    return cast(BinaryIO, tempfile.TemporaryFile())


def _tail(file: BinaryIO, size: int = 4096) -> str:
    """Return the end of `file` as text."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - size))
    return file.read().decode("utf-8", "replace")


def sklearn_installed() -> bool:
    """Whether the extra `predictor` is there, without importing it."""
    return all(importlib.util.find_spec(name) is not None for name in ("numpy", "sklearn"))
