"""May a newcomer queue? Answered at once, in constant time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controller.load import Load
from controller.verdict import Verdict
from policies.base import Job
from proxy.dispatch.queue import WaitQueue
from proxy.outcome import Infeasible, Outcome, QueueFull

__all__ = ["Admission", "Judge"]


class Judge(Protocol):
    """The controller, as far as admission goes."""

    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue, with these `waiting`."""
        ...

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again, in seconds."""
        ...


class Admission:
    """The queue's bounds first, then the predicted deadline."""

    __slots__ = ("_judge", "_queue")

    def __init__(self, queue: WaitQueue, judge: Judge) -> None:
        self._queue = queue
        self._judge = judge

    def refusal(
        self, job: Job, klass: str, now: float, load: Load, *, waiting: Sequence[Job] = (), lenient: bool = False
    ) -> Outcome | None:
        """Return why `job` may not queue, or None when it may. `lenient`: only bounds hold, no prediction does.

        `waiting` are those in front of it, where the judge weighs them.
        """
        full = self._queue.full_for(klass)
        if full is not None:
            return QueueFull(after_s=self._judge.retry_after_s(now, load), klass=full or None)
        verdict = self._judge.admit(job, now, load, waiting)
        if verdict.admitted or lenient:
            return None
        return Infeasible(after_s=verdict.retry_after_s, why=verdict.reason)
