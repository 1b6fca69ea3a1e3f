"""What the orderings that keep no state have in common."""

from __future__ import annotations

from typing import ClassVar

from policies.base import Job

__all__ = ["Ordering"]


class Ordering:
    """A policy whose key depends on the job alone; the three notifications mean nothing to it.

    Subclasses set `name` and implement `key`; `max_slack` and `max_skip` are theirs to set in `__init__`.
    """

    name: ClassVar[str]

    def __init__(self, *, max_slack: float = 0.0, max_skip: int = 0) -> None:
        self._max_slack = max_slack
        self._max_skip = max_skip

    @property
    def max_slack(self) -> float:
        """Upper bound in seconds on `key(job) - job.arrival`."""
        return self._max_slack

    @property
    def max_skip(self) -> int:
        """How many jobs that do not fit may be passed over while a batch is filled (see `policies.packing`)."""
        return self._max_skip

    def key(self, job: Job) -> float:
        """Return the virtual deadline of `job`."""
        raise NotImplementedError

    def dispatched(self, job: Job) -> None:
        """Take note that `job` left the queue to be served."""

    def completed(self, job: Job, output_tokens: int) -> None:
        """Take note of what `job` really cost."""

    def removed(self, job: Job) -> None:
        """Take note that `job` left the queue without being served."""
