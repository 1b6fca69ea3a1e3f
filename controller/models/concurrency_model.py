"""How an upstream that batches by itself answers to concurrency: first token, token pace, whole request."""

from __future__ import annotations

from typing import Any, Final

from controller.models.first_token import FirstTokenModel
from controller.models.service_model import ServiceModel
from controller.observation import Observation

__all__ = ["ConcurrencyModel", "FirstTokenModel"]

_WARM: Final = 64
_SPACING_S: Final = 0.02
"""Once warm, fifty samples a second say as much as five hundred, at a tenth of the work."""


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
        self.samples = 0
        self.last_sample_at: float | None = None
        self._last_first_at: float | None = None

    @property
    def identified(self) -> bool:
        """Whether there is enough to predict from."""
        return self.samples >= 8

    def begun(self, prompt_tokens: int, seconds: float, now: float, ahead_s: float, doubt_s: float = 0.0) -> float:
        """Learn from a first token that came `seconds` after dispatch, `ahead_s` of them for prompts sent before.

        These and its own may have taken up to `doubt_s` longer.
        Returns for how long it waited for something other than prompts, in seconds; -1 when it was not looked at.
        """
        last = self._last_first_at
        if self.first.samples >= _WARM and last is not None and 0.0 <= now - last < _SPACING_S:
            return -1.0
        self._last_first_at = now
        return self.first.learn(prompt_tokens, seconds, now, ahead_s, doubt_s)

    def observe(self, obs: Observation, concurrency: int, *, by_load: bool = True) -> bool:
        """Learn from one served request that ran beside `concurrency` - 1 others; says whether it was taken in.

        With `by_load` false its length decided how long it took, which says nothing of others.
        """
        if obs.dispatched is None:
            return False
        if self.samples >= _WARM and self.last_sample_at is not None and obs.done - self.last_sample_at < _SPACING_S:
            return False
        self.samples += 1
        self.last_sample_at = obs.done
        if by_load:
            self.whole.observe(concurrency, obs.done - obs.dispatched)
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
