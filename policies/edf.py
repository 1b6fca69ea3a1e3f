"""Earliest deadline first."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering
from policies.sizes import bounded, finite

__all__ = ["EarliestDeadlineFirst"]


class EarliestDeadlineFirst(Ordering):
    """Serve whoever's deadline is next.

    - What: `key = deadline`, read as slack `deadline - arrival`; a job without one counts as due
      `default_slack_s` after its arrival. A deadline that had passed on arrival counts as due at once.
    - Inputs: arrival and deadline.
    - Knobs: `default_slack_s` (default 30), `max_slack_s` (600): a later deadline is read as this.
    - Bound: a request is overtaken only by requests that arrive within its slack, at most `max_slack_s`.
    - Trade-offs: whenever some order meets every deadline, this one does (for jobs of equal length; Liu and
      Layland 1973). Under overload it serves those about to be late and makes everybody late: it needs the
      controller's shedding of requests that can no longer make it.
    """

    name = "edf"

    def __init__(self, *, default_slack_s: float = 30.0, max_slack_s: float = 600.0) -> None:
        super().__init__(max_slack=finite("max_slack_s", max_slack_s, inclusive=True))
        self._default = min(finite("default_slack_s", default_slack_s, inclusive=True), self._max_slack)

    def key(self, job: Job) -> float:
        """Return the job's deadline, kept within `max_slack_s` of its arrival."""
        if job.deadline is None:
            return job.arrival + self._default
        return job.arrival + bounded(job.deadline - job.arrival, self._max_slack)
