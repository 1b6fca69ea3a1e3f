"""What a policy sees of a waiting request, and what it has to answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["Job", "Policy"]


@dataclass(slots=True)
class Job:
    """One waiting request, reduced to what an ordering may depend on.

    Times are seconds of one monotonic clock; sizes are tokens (for requests without tokens, items).
    """

    id: str
    arrival: float
    """When the request came in."""
    class_slack: float = 0.0
    """Seconds by which the request's priority class defers to the most urgent one."""
    tenant: str = ""
    weight: float = 1.0
    """The tenant's share relative to the other tenants."""
    prompt_tokens: int = 0
    predicted_tokens: float | None = None
    """Median of the predicted output length; None when nothing is known."""
    predicted_tokens_p90: float | None = None
    """Ninth decile of the predicted output length; None when nothing is known."""
    deadline: float | None = None
    """When the answer is worthless, as a point on the same clock."""
    max_tokens: int | None = None
    """The caller's own bound on the output length."""
    klass: str = "default"
    """The request's priority class, by name."""
    items: int = 1
    """How many items of an upstream call it takes up; 1 for a sequence."""
    express: bool = False
    """Whether its class takes the express lane."""


@runtime_checkable
class Policy(Protocol):
    """An ordering by *virtual deadline*: the smallest key goes first.

    The key is computed once, when a job is queued, and never changes, so any heap over it stays valid and
    ageing is free. `key = arrival + slack`: nobody waits longer than its own slack beyond a newcomer, which
    bounds starvation by construction; `max_slack` is that bound.
    """

    @property
    def name(self) -> str:
        """The name the policy is configured by."""
        ...

    @property
    def max_slack(self) -> float:
        """Upper bound in seconds on `key(job) - job.arrival`; `inf` where the policy gives none."""
        ...

    def key(self, job: Job) -> float:
        """Return the virtual deadline of `job`. Called exactly once per job, when it is queued."""
        ...

    def dispatched(self, job: Job) -> None:
        """Take note that `job` left the queue to be served."""
        ...

    def completed(self, job: Job, output_tokens: int) -> None:
        """Take note of what `job` really cost. Called once per dispatched job, 0 when it was aborted."""
        ...

    def removed(self, job: Job) -> None:
        """Take note that `job` left the queue without being served (cancelled, expired or shed)."""
        ...
