"""Order by predicted output length and pack to the token budget."""

from __future__ import annotations

from policies.base import Job
from policies.ordering import Ordering
from policies.ranks import PLACES, Ranks, place
from policies.sizes import DEFAULT_OUTPUT_TOKENS, expected_output, finite

__all__ = ["Predicted"]


class Predicted(Ordering):
    """Serve the shortest predicted answer first, aged, and fill the token budget with what fits.

    - What: `key = arrival + max_slack_s * rank`, with rank the share of the predictions of late that are shorter
      (`policies.ranks`); when a batch is filled, up to `max_skip` jobs that do not fit the rest of the token budget
      are passed over for later ones that do. The head of the order always goes, so passing over cannot starve
      anyone. Of two predictions within 9 % of one another the one that came first goes first.
    - Inputs: arrival, the predicted median of the output (unknown: `default_tokens`), the caller's max_tokens.
    - Knobs: `max_slack_s` (default 30: the order is as strong as the promise to the longest is weak), `max_skip` (8),
      `default_tokens` (256).
    - Bound: a request is overtaken only by requests that arrive within its slack, at most `max_slack_s`, and by
      `max_skip` more for each batch it did not fit in.
    - Trade-offs: lives by the quality of the prediction. A rank correlation around 0.4 already gives most of the
      gain in median and mean; with none it is first come, first served with noise. As ranks have no scale, there is
      nothing to set for short or long answers; a fixed rate of ageing, in tokens per second, is `sjf`'s. As with
      `sjf`, the unaged order would make P99 3 to 8 times worse: that is what a very large `max_slack_s` comes to.
    """

    name = "predicted"

    def __init__(
        self,
        *,
        default_tokens: float = DEFAULT_OUTPUT_TOKENS,
        max_skip: int = 8,
        max_slack_s: float = 30.0,
    ) -> None:
        if isinstance(max_skip, bool) or not isinstance(max_skip, int) or max_skip < 0:
            raise ValueError(f"max_skip must be a whole number >= 0, not {max_skip!r}")
        super().__init__(max_slack=finite("max_slack_s", max_slack_s, inclusive=True), max_skip=max_skip)
        self._default = finite("default_tokens", default_tokens, inclusive=True)
        self._ranks = Ranks()
        self._newest = [float("-inf")] * PLACES
        """The last key given to each place: ranks move, equals stay in order of arrival."""

    def key(self, job: Job) -> float:
        """Return the arrival time plus the share of `max_slack_s` that the predicted output's rank says."""
        own = place(expected_output(job, self._default))
        latest = job.arrival + self._max_slack
        key = min(latest, max(job.arrival + self._max_slack * self._ranks.rank(own), self._newest[own]))
        self._newest[own] = key
        self._ranks.add(own)
        return key
