"""What is known of the upstreams of one pool, behind one interface for both ways to dispatch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from controller.dispatch.admission import Forecast
from controller.load import Load
from controller.measure.evidence import Budget
from controller.measure.promises import Promises
from controller.observation import Observation
from controller.slo import SLO
from controller.verdict import Choice
from policies.base import Job

__all__ = ["Upstream", "job_deadline", "job_deadlines"]

_NEVER: Final = float("inf")
_ALIKE_S: Final = 1e-3


class Upstream(ABC):
    """Learns from finished requests; forecasts for new ones; forms the next dispatch.

    A class and no protocol, so that what is compiled calls it without looking names up.
    """

    @abstractmethod
    def sent(self, job: Job, upstream: str, now: float, inflight_tokens: float, *, streamed: bool) -> None:
        """Take note of a request sent to `upstream`, beside others with `inflight_tokens` (0: not counted)."""

    @abstractmethod
    def first_token(self, upstream: str, dispatched: float, now: float) -> Job | None:
        """Learn from a first token of what was sent to `upstream`; returns whose it is, None when unknown."""

    @abstractmethod
    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that came to nothing at `upstream`."""

    @abstractmethod
    def awaited_s(self, now: float) -> float:
        """Return for how long the oldest request has waited for its first token, in seconds."""

    @abstractmethod
    def observe(self, obs: Observation, missed: tuple[str, ...], slo: SLO, *, by_load: bool = True) -> None:
        """Learn from one request that reached the upstream and missed these targets of `slo`.

        With `by_load` false its own length made it late, which says nothing of others.
        """

    @property
    @abstractmethod
    def weighs_waiting(self) -> bool:
        """Whether a forecast depends on who waits, and not only on how many."""

    @abstractmethod
    def forecast(
        self, job: Job, cap: int, now: float, load: Load, promises: Promises, waiting: Sequence[Job], *, form: bool
    ) -> Forecast | None:
        """Predict for a newcomer; None while nothing is known.

        `waiting` are those who wait, in any order, and empty where nobody asked for them; `form` as in `choose`.
        """

    @abstractmethod
    def choose(
        self, jobs: Sequence[Job], cap: int, now: float, load: Load, promises: Promises, *, form: bool, shed: bool
    ) -> Choice:
        """Choose the next dispatch; `form` by deadline or first come, `shed` what can no longer make it."""

    @abstractmethod
    def predicted_ratio(self, size: int, limits: tuple[Budget, ...]) -> float | None:
        """Return the predicted upstream time at another size over its budget; None while unidentified."""

    @abstractmethod
    def drain_s(self, cap: int, now: float, load: Load) -> float:
        """Return how long until what waits now has been dispatched, in seconds."""

    @property
    @abstractmethod
    def last_service_s(self) -> float:
        """The last measured service time, in seconds; 0 before there is one."""

    @abstractmethod
    def tick(self, now: float) -> None:
        """Do what is due once a second."""

    @abstractmethod
    def late_target(self, share: float) -> None:
        """Change the late share that predictions are corrected towards."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""


def job_deadline(job: Job, span: float | None) -> float:
    """Return when a job's answer is late: `span` after its arrival or its own deadline; infinite without either."""
    deadline = float("inf") if span is None else job.arrival + span
    return deadline if job.deadline is None or deadline < job.deadline else job.deadline


def job_deadlines(jobs: Sequence[Job], promises: Promises) -> tuple[list[float], bool]:
    """Return when each job's answer is late, and whether they have different times to wait from their arrival on."""
    span = promises.pool.e2e_s
    if promises.by_class:
        deadlines = [job_deadline(job, promises.of(job.klass).e2e_s) for job in jobs]
    elif span is None:
        deadlines = [_NEVER if job.deadline is None else job.deadline for job in jobs]
    else:
        deadlines = [job_deadline(job, span) for job in jobs]
    if not jobs:
        return deadlines, False
    spans = [deadline - job.arrival for deadline, job in zip(deadlines, jobs, strict=True)]
    least, most = min(spans), max(spans)
    return deadlines, most - least > _ALIKE_S and least < _NEVER
