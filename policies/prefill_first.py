"""Short prompts first, with a bounded wait for the long ones."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering
from policies.sizes import bounded, finite

__all__ = ["PrefillFirst"]


class PrefillFirst(Ordering):
    """Let short prompts start before long ones that came shortly before them.

    - What: `key = arrival + prompt tokens / prefill_rate`, at most `max_wait_s`: a long prompt stands aside for
      about as long as its own prefill takes.
    - Inputs: arrival and prompt tokens; output lengths play no part, so nothing needs to be predicted.
    - Knobs: `prefill_rate` in prompt tokens per second (default 2000; the upstream's real rate is a good value),
      `max_wait_s` (2).
    - Bound: a request is overtaken only by requests that arrive within `max_wait_s`.
    - Trade-offs: time to first token of short prompts improves at the price of at most `max_wait_s` for long
      ones. Pays where prefill dominates (long documents among short questions); does nothing for decode.
    """

    name = "prefill-first"

    def __init__(self, *, prefill_rate: float = 2000.0, max_wait_s: float = 2.0) -> None:
        super().__init__(max_slack=finite("max_wait_s", max_wait_s, inclusive=True))
        self._rate = finite("prefill_rate", prefill_rate)

    def key(self, job: Job) -> float:
        """Return the arrival time plus the estimated prefill time, at most `max_wait_s`."""
        return job.arrival + bounded(job.prompt_tokens / self._rate, self._max_slack)
