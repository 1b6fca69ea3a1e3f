"""Urgent classes first, with ageing."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering
from policies.sizes import bounded, finite

__all__ = ["Priority"]


class Priority(Ordering):
    """Serve urgent classes first; whoever waits grows more urgent.

    - What: `key = arrival + class_slack`. A class with 10 s of slack stands aside for urgent requests that come
      up to 10 s after it, and for none that come later: ageing without ever touching a key again.
    - Inputs: the arrival time and the slack of the request's class.
    - Knobs: `max_slack_s` (default 3600) caps the slack of every class.
    - Bound: a request is overtaken only by requests that arrive within its own slack, at most `max_slack_s`.
    - Trade-offs: the slack is the whole contract and can be told to callers; unlike strict tiers, a flood of
      urgent work delays the patient class by its slack and not for ever. Lengths are ignored.
    """

    name = "priority"

    def __init__(self, *, max_slack_s: float = 3600.0) -> None:
        super().__init__(max_slack=finite("max_slack_s", max_slack_s, inclusive=True))

    def key(self, job: Job) -> float:
        """Return the arrival time plus the slack of the job's class."""
        return job.arrival + bounded(job.class_slack, self._max_slack)
