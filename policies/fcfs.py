"""First come, first served."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering

__all__ = ["FCFS"]


class FCFS(Ordering):
    """Serve in the order of arrival.

    - What: `key = arrival`.
    - Inputs: the arrival time.
    - Knobs: none.
    - Bound: nobody is ever overtaken (`max_slack` 0).
    - Trade-offs: the least variance of waiting time and nothing to explain to callers; but one long request
      holds up every short one behind it, and an urgent request waits like any other.
    """

    name = "fcfs"

    def __init__(self) -> None:
        super().__init__()

    def key(self, job: Job) -> float:
        """Return the arrival time."""
        return job.arrival
