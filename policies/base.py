"""What a policy has to answer."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from policies.job import Job

__all__ = ["Job", "Policy"]


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
