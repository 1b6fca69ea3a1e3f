"""What a pool asks of its controller while it serves, wherever the setpoints are decided."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from controller.decision import Decision, DecisionLog
from controller.dispatch.dispatcher import Dispatcher
from controller.load import Load
from controller.measure.evidence import Mode
from controller.observation import Observation
from controller.setpoints import Setpoints
from controller.slo import SLO
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Controller"]


@mypyc_attr(allow_interpreted_subclasses=True)
class Controller(ABC):
    """Answers for one pool: who may come, who goes next, and under which SLO and setpoints.

    A class and no protocol, so that what is compiled calls it without looking names up. Times are seconds of one
    monotonic clock.
    """

    pool: str
    """The pool's name."""
    dispatcher: Dispatcher
    """What the requests pass."""
    decisions: DecisionLog
    """What was decided about the pool."""

    @property
    def mode(self) -> Mode:
        """How its requests are dispatched: `merge` or `gate`."""
        return self.dispatcher.mode

    @property
    def setpoints(self) -> Setpoints:
        """The knobs of the current generation, pins applied."""
        return self.dispatcher.setpoints

    @property
    def slo(self) -> SLO:
        """The SLO in force."""
        return self.dispatcher.promises.pool

    @property
    def class_slos(self) -> Mapping[str, SLO]:
        """The SLOs of classes that have one of their own."""
        return self.dispatcher.promises.by_class

    @property
    def arrival_rate(self) -> float:
        """Requests a second, refused ones included, averaged over a few seconds."""
        return self.dispatcher.arrival_rate

    def slo_of(self, klass: str) -> SLO:
        """Return what is promised to requests of `klass`."""
        return self.dispatcher.promises.of(klass)

    @property
    def weighs_waiting(self) -> bool:
        """Whether `admit` depends on who waits, and not only on how many."""
        return self.dispatcher.weighs_waiting

    @abstractmethod
    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue, with these `waiting` (`Dispatcher.admit`)."""

    @abstractmethod
    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed (`Dispatcher.choose`)."""

    @abstractmethod
    def window_s(self, now: float, load: Load) -> float:
        """Return for how long after its arrival the first waiting item may be held for company, in seconds."""

    @abstractmethod
    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again: the predicted drain, within 1..60 s."""

    @abstractmethod
    def sent(
        self, job: Job, upstream: str, now: float, inflight_tokens: float = 0.0, *, streamed: bool = True
    ) -> None:
        """Take note of a request that was sent to `upstream` by itself (`Dispatcher.sent`)."""

    @abstractmethod
    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in the first token of what was sent to `upstream` at `dispatched`, as soon as it is there."""

    @abstractmethod
    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that was sent to `upstream` and will be answered from elsewhere."""

    @abstractmethod
    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""

    @abstractmethod
    def tick(self, now: float, load: Load) -> Decision | None:
        """Do what is due once a second; returns the decision when there was one."""

    @abstractmethod
    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that is not the controller's own.

        Where requests are dispatched otherwise from now on, those of before say nothing for or against the setpoints.
        """
