"""How an upstream that batches by itself answers to concurrency: first token, token pace, whole request."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from controller.observation import Observation
from controller.residuals import ResidualRing
from controller.service_model import ServiceModel

__all__ = ["ConcurrencyModel", "FirstTokenModel"]

_WARM: Final = 64
_SPACING_S: Final = 0.02
"""Once warm, fifty samples a second say as much as five hundred, at a tenth of the work."""


class FirstTokenModel:
    """Seconds from dispatch to first token: prefill of the prompts ahead, of one's own, and what else one waits for.

    Prefill takes `prompt_token_s` a token, one prompt after the other: the lower quartile of the seconds per token
    among the longer prompts, so that waiting does not inflate it. The rest (for memory, for the step to end) does not
    depend on one's own prompt, and is heavy-tailed: its quantiles are taken as they are from the last twenty seconds,
    at least three and at most two hundred requests, so that a jam is forgotten soon after it ends.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.prompt_token_s = 0.0
        self._per_token = ResidualRing(100)
        self._mean_prompt = 0.0
        self._waits: deque[tuple[float, float]] = deque(maxlen=200)
        self._sorted: list[float] = []
        self._stale = 0
        self._busy_until = 0.0

    def dispatched(self, prompt_tokens: int, now: float) -> float:
        """Take note of a prompt sent at `now`; returns the seconds until it should be prefilled."""
        free_at = self._busy_until if self._busy_until > now else now
        self._busy_until = free_at + self.prompt_token_s * prompt_tokens
        return self._busy_until - now

    def ahead_s(self, now: float) -> float:
        """Return how long the prompts that were sent will still be prefilled, in seconds."""
        ahead = self._busy_until - now
        return ahead if ahead > 0.0 else 0.0

    def observe(self, prompt_tokens: int, seconds: float, now: float, expected_s: float = 0.0) -> float:
        """Learn from one streamed request that ended at `now`; `expected_s` is what `dispatched` said.

        Returns for how long it waited for something other than prefill, in seconds.
        """
        self.samples += 1
        self._mean_prompt += max(0.02, 1.0 / self.samples) * (prompt_tokens - self._mean_prompt)
        if prompt_tokens > 0 and prompt_tokens >= 0.5 * self._mean_prompt:
            self._per_token.add(seconds / prompt_tokens)
            if len(self._per_token) >= 8:
                self.prompt_token_s = self._per_token.quantile(0.25)
        rest = max(0.0, seconds - max(expected_s, self.prompt_token_s * prompt_tokens))
        self._waits.append((now, rest))
        while len(self._waits) > 3 and self._waits[0][0] < now - 20.0:
            self._waits.popleft()
        self._stale += 1
        if self._stale >= 8 or len(self._waits) < 32:
            self._sorted = sorted(wait for _, wait in self._waits)
            self._stale = 0
        return rest

    def forget_waits(self, newest: int | None = None) -> None:
        """Drop the newest waits, or all: they had a cause that has been removed."""
        for _ in range(len(self._waits) if newest is None else min(newest, len(self._waits))):
            self._waits.pop()
        self._sorted = sorted(wait for _, wait in self._waits)

    def wait_s(self, q: float) -> float:
        """Return the `q`-quantile of the wait, in seconds; 0 before three samples.

        Of few samples nothing above their second largest is taken: one jam should not refuse everybody.
        """
        n = len(self._sorted)
        if n < 3:
            return 0.0
        most = max(0.5, 1.0 - 2.0 / n)
        # Neither reaches 1, so the index never reaches n.
        return self._sorted[int((q if q < most else most) * n)]

    def quantile_s(self, prompt_tokens: int, q: float) -> float:
        """Return the `q`-quantile of the time to first token, in seconds."""
        prefill = self.prompt_token_s * prompt_tokens
        return prefill + self.wait_s(q) if self._sorted else prefill

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self.prompt_token_s *= factor
        self._sorted = [wait * factor for wait in self._sorted]


class ConcurrencyModel:
    """Three models over concurrency: seconds to the first token, seconds a token, seconds a request.

    The first two need streamed answers with usage; the third works for any upstream, and is what everything falls
    back to.
    """

    def __init__(self, late_target: float = 0.01) -> None:
        self.first = FirstTokenModel()
        self.pace = ServiceModel(late_target)
        self.whole = ServiceModel(late_target)
        self.theta = 0.85
        self.late_target = late_target
        self.mean_output_tokens = 0.0
        self.last_wait_s = 0.0
        """For how long the last streamed request waited for something other than prefill, in seconds."""
        self.samples = 0
        self.last_sample_at: float | None = None

    @property
    def identified(self) -> bool:
        """Whether there is enough to predict from."""
        return self.samples >= 8

    def observe(self, obs: Observation, concurrency: int, expected_first_s: float = 0.0) -> bool:
        """Learn from one served request that ran beside `concurrency` - 1 others; says whether it was taken in."""
        if obs.dispatched is None:
            return False
        if self.samples >= _WARM and self.last_sample_at is not None and obs.done - self.last_sample_at < _SPACING_S:
            return False
        self.samples += 1
        self.last_sample_at = obs.done
        self.whole.observe(concurrency, obs.done - obs.dispatched)
        if obs.streamed and obs.first_byte is not None:
            seconds = obs.first_byte - obs.dispatched
            self.last_wait_s = self.first.observe(obs.prompt_tokens, seconds, obs.done, expected_first_s)
            if (pace := obs.tpot_s) is not None:
                self.pace.observe(concurrency, pace)
        if obs.output_tokens:
            gain = max(0.02, 1.0 / self.samples)
            self.mean_output_tokens += gain * (obs.output_tokens - self.mean_output_tokens)
        return True

    def late(self, late: bool) -> None:
        """Correct the quantile by one finished request."""
        theta = self.theta + 0.02 * ((1.0 if late else 0.0) - self.late_target)
        self.theta = 0.5 if theta < 0.5 else 0.99 if theta > 0.99 else theta

    def first_s(self, prompt_tokens: int) -> float:
        """Return a time to first token after dispatch that about `theta` of the requests stay within, in seconds."""
        return self.first.quantile_s(prompt_tokens, self.theta)

    def service_s(self, prompt_tokens: int, output_tokens: float | None, concurrency: int) -> float:
        """Return a service time that about `theta` of such requests stay within, in seconds."""
        if output_tokens is not None and self.first.samples >= 8 and self.pace.samples >= 8:
            pace = self.pace.within_s(concurrency, self.theta)
            return self.first_s(prompt_tokens) + pace * max(0.0, output_tokens - 1.0)
        return self.whole.within_s(concurrency, self.theta)

    def scale(self, factor: float) -> None:
        """Multiply every prediction."""
        self.whole.scale(factor)
        self.pace.scale(factor)
        self.first.scale(factor)

    def drain_rate(self, concurrency: int) -> float:
        """Return departures a second while `concurrency` requests run (Little's law)."""
        return concurrency / max(1e-6, self.whole.predict(concurrency))

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        shown = {
            "samples": self.samples,
            "identified": self.identified,
            "theta": self.theta,
            "mean_output_tokens": self.mean_output_tokens,
            "whole": self.whole.as_dict(),
        }
        if self.pace.samples:
            shown["pace"] = self.pace.as_dict()
        if self.first.samples:
            shown["first_ms"] = {
                f"{prompt} tokens": 1000.0 * self.first.quantile_s(prompt, 0.5) for prompt in (128, 512, 2048)
            }
        return shown
