"""Shortest job first, aged."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering
from policies.sizes import DEFAULT_OUTPUT_TOKENS, bounded, expected_output, finite

__all__ = ["ShortestJobFirst"]


class ShortestJobFirst(Ordering):
    """Serve what takes least work first; whoever waits catches up.

    - What: `key = arrival + size / alpha`, `size = prompt_weight * prompt tokens + expected output tokens`. The
      time a job takes is proportional to its size, so the slack is a multiple of the service time. Linear
      ageing: every second of waiting makes a job `alpha` tokens shorter than a newcomer.
    - Inputs: arrival, prompt tokens, the predicted median of the output (unknown: `default_tokens`), the caller's
      own max_tokens as an upper bound.
    - Knobs: `alpha` in tokens per second (default 50; a good value is the 95th percentile of the size over the
      latency target), `prompt_weight` (default 0.1: a prompt token costs about a tenth of an output token),
      `default_tokens` (256), `max_slack_s` (30).
    - Bound: a request is overtaken only by requests that arrive within its slack, at most `max_slack_s`.
    - Trade-offs: a better median and mean (about 2x near saturation), bought from the longest requests. Without
      ageing the order is optimal for the mean and ruinous for the tail: P99 3 to 8 times worse than first come,
      first served, and long requests starve. The smaller `alpha`, the closer to that; the larger, the closer to
      first come, first served.
    """

    name = "sjf"

    def __init__(
        self,
        *,
        alpha: float = 50.0,
        prompt_weight: float = 0.1,
        default_tokens: float = DEFAULT_OUTPUT_TOKENS,
        max_slack_s: float = 30.0,
    ) -> None:
        super().__init__(max_slack=finite("max_slack_s", max_slack_s, inclusive=True))
        self._alpha = finite("alpha", alpha)
        self._prompt_weight = finite("prompt_weight", prompt_weight, inclusive=True)
        self._default = finite("default_tokens", default_tokens, inclusive=True)

    def key(self, job: Job) -> float:
        """Return the arrival time plus the time it takes `alpha` to work off the job's size."""
        size = self._prompt_weight * job.prompt_tokens + expected_output(job, self._default)
        return job.arrival + bounded(size / self._alpha, self._max_slack)
