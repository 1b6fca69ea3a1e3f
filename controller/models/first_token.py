"""Seconds from dispatch to first token: what any prompt takes, what its tokens add, and what one waits for."""

from __future__ import annotations

from collections import deque
from math import log
from typing import Final

from controller.models.prefill_clock import PrefillClock, Sent
from policies.base import Job

__all__ = ["FirstTokenModel"]

_STEPS_AN_OCTAVE: Final = 2.0
_KEPT: Final = 24
"""Prompts of about one length that are remembered."""
_FEW: Final = 3
_DIFFER: Final = 1.5
"""Times the shortest that the longest prompts must have before a slope is read off them."""
_TELLING: Final = 0.1
"""Part of the usual time that the slope must explain between the shortest and the longest; less is noise."""
_BEYOND: Final = 1.5
"""Times the longest that is known from which a prompt is longer than anything is known of."""
_LOW: Final = 0.25
"""The lower quartile of each length, so that waiting does not pass for reading."""
_LATELY_S: Final = 10.0
_LOST_S: Final = 600.0


class FirstTokenModel:
    """A line over the length of the prompt, the prompts ahead at each upstream, and a heavy-tailed rest.

        first = base_s + prompt_token_s * tokens, after the prompts that the same upstream was sent before

    The line goes through the lower quartiles of prompts of about one length. It is flat until prompts have differed
    enough to tell, and goes on flat beyond the longest that was seen. The rest (for memory, for the step to end) does
    not depend on one's own prompt: its quantiles are taken as they are from the last twenty seconds, at least three
    and at most two hundred requests, so that a jam is forgotten soon after it ends.

    Tokens are those that were estimated when a prompt was sent, for a newcomer's are estimated the same way: whether
    the estimate is right does not matter.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.base_s = 0.0
        self.prompt_token_s = 0.0
        self._clocks: dict[str, PrefillClock] = {}
        self._used: dict[str, float] = {}
        self._lengths: dict[int, deque[tuple[int, float]]] = {}
        self._longest = 0.0
        self._waits: deque[tuple[float, int, float]] = deque(maxlen=200)
        """(when, tokens, seconds that were not spent behind other prompts)."""
        self._sorted: list[float] = []
        self._stale = 0

    # Prompts on their way.

    def dispatched(self, prompt_tokens: int, now: float, upstream: str = "") -> float:
        """Take note of a prompt sent to `upstream` at `now`; returns the seconds until it should be read."""
        return self.sent(Job("", now, prompt_tokens=prompt_tokens), upstream, now).expected_s

    def sent(self, job: Job, upstream: str, now: float, total_tokens: float = 0.0, *, streamed: bool = True) -> Sent:
        """Take note of a request sent to `upstream` at `now`."""
        clock = self._clocks.get(upstream)
        if clock is None:
            clock = self._clocks[upstream] = PrefillClock()
        self._used[upstream] = now
        tokens = job.prompt_tokens
        doubt_s = self._doubt_s(tokens) if tokens > _BEYOND * self._longest else 0.0
        return clock.sent(job, self._reading_s(tokens), now, total_tokens, streamed=streamed, doubt_s=doubt_s)

    def first_token(self, upstream: str, dispatched: float, now: float) -> Sent | None:
        """Take note of a first token at `now`; returns what was sent, or None when that is unknown or was told."""
        clock = self._clocks.get(upstream)
        sent = None if clock is None else clock.first_token(dispatched, now)
        return self._elsewhere(dispatched) if sent is None else sent

    def gone(self, upstream: str, dispatched: float) -> None:
        """Take note that a request is over without a first token."""
        clock = self._clocks.get(upstream)
        if clock is None or clock.gone(dispatched) is None:
            self._elsewhere(dispatched)

    def _elsewhere(self, dispatched: float) -> Sent | None:
        """Return what was sent then and answered by another upstream than it was sent to, after a retry."""
        for clock in self._clocks.values():
            sent = clock.gone(dispatched)
            if sent is not None:
                return sent
        return None

    def ahead_s(self, now: float) -> float:
        """Return how long a newcomer waits for prompts sent before it, in seconds: at the upstream with the fewest.

        Of those that were sent anything lately. An upstream that gets nothing may be out of service.
        """
        least = -1.0
        for upstream, clock in self._clocks.items():
            if now - self._used[upstream] < _LATELY_S:
                ahead = clock.ahead_s(now)
                if least < 0.0 or ahead < least:
                    least = ahead
        return least if least > 0.0 else 0.0

    def most_s(self, upstream: str) -> float:
        """Return for how long all prompts that `upstream` was ever sent may have kept it reading, in seconds."""
        clock = self._clocks.get(upstream)
        return 0.0 if clock is None else clock.most_s

    def oldest_s(self, now: float) -> float:
        """Return for how long the oldest prompt has waited for its first token, in seconds."""
        oldest = 0.0
        for clock in self._clocks.values():
            waited = clock.oldest_s(now)
            if waited > oldest:
                oldest = waited
        return oldest

    def tick(self, now: float) -> None:
        """Forget what never came back, and upstreams that are gone."""
        for upstream in [name for name, used in self._used.items() if now - used > _LOST_S]:
            del self._clocks[upstream], self._used[upstream]
        for clock in self._clocks.values():
            clock.forget(now - _LOST_S)

    # What is learned of them.

    def observe(
        self, prompt_tokens: int, seconds: float, now: float, expected_s: float = 0.0, upstream: str = ""
    ) -> float:
        """Learn from a first token that came at `now`, after `seconds`; `expected_s` is what `dispatched` said.

        Returns for how long it waited for something other than prompts, in seconds.
        """
        sent = self.first_token(upstream, now - seconds, now)
        if sent is not None:
            return self.learn(sent.job.prompt_tokens, seconds, now, sent.ahead_s, sent.doubt_s)
        return self.learn(prompt_tokens, seconds, now, max(0.0, expected_s - self._reading_s(prompt_tokens)))

    def learn(self, prompt_tokens: int, seconds: float, now: float, ahead_s: float, doubt_s: float = 0.0) -> float:
        """Learn from a first token that came after `seconds`, of which prompts ahead were to take `ahead_s`.

        They and its own may have taken up to `doubt_s` longer, which then is no waiting for anything else. Returns
        for how long it waited for something other than prompts, in seconds.
        """
        self.samples += 1
        alone = max(0.0, seconds - ahead_s)
        rest = max(0.0, alone - doubt_s - self.alone_s(prompt_tokens))
        self._keep(prompt_tokens, alone)
        self._waits.append((now, prompt_tokens, alone - doubt_s))
        while len(self._waits) > 3 and self._waits[0][0] < now - 20.0:
            self._waits.popleft()
        self._stale += 1
        if self._stale >= 8 or len(self._waits) < 32:
            self._fit()
            self._sort()
            self._stale = 0
        return rest

    def forget_waits(self, newest: int | None = None) -> None:
        """Drop the newest waits, or all: they had a cause that has been removed."""
        for _ in range(len(self._waits) if newest is None else min(newest, len(self._waits))):
            self._waits.pop()
        self._sort()

    def _sort(self) -> None:
        """Take from the times that were measured what the line now explains."""
        self._sorted = sorted([max(0.0, alone - self.alone_s(tokens)) for _, tokens, alone in self._waits])

    def _keep(self, prompt_tokens: int, seconds: float) -> None:
        step = int(_STEPS_AN_OCTAVE * log(prompt_tokens, 2.0)) if prompt_tokens > 1 else 0
        kept = self._lengths.get(step)
        if kept is None:
            kept = self._lengths[step] = deque(maxlen=_KEPT)
        kept.append((prompt_tokens, seconds))

    def _fit(self) -> None:
        """Draw the line anew, by least squares through the lower quartile of each length, weighed by its count."""
        n = sx = sy = sxx = sxy = 0.0
        shortest, longest = float("inf"), 0.0
        few = len(self._lengths) > 1
        for kept in self._lengths.values():
            count = len(kept)
            if few and count < _FEW:
                continue
            x = sum([tokens for tokens, _ in kept]) / count
            y = sorted([seconds for _, seconds in kept])[int(_LOW * count)]
            n += count
            sx += count * x
            sy += count * y
            sxx += count * x * x
            sxy += count * x * y
            shortest, longest = min(shortest, x), max(longest, x)
        if not n:
            return
        mx, my = sx / n, sy / n
        slope = 0.0
        if longest > shortest and longest >= _DIFFER * shortest:
            slope = max(0.0, (sxy / n - mx * my) / (sxx / n - mx * mx))
            if slope * (longest - shortest) < _TELLING * my:
                slope = 0.0
        if slope * mx > my:
            slope = my / mx
        self.prompt_token_s = slope
        self.base_s = my - slope * mx
        self._longest = longest

    # What is expected.

    def _reading_s(self, prompt_tokens: int) -> float:
        """Return how long the prompts behind it wait for this one."""
        tokens, longest = float(prompt_tokens), self._longest
        return self.prompt_token_s * (longest if tokens > longest else tokens)

    def _doubt_s(self, prompt_tokens: int) -> float:
        """Return how much longer a prompt may take that is longer than any that is known.

        By the line, where that has a slope; else in proportion, which is more than any line makes of it.
        """
        if self.prompt_token_s > 0.0:
            return self.prompt_token_s * (prompt_tokens - self._longest)
        return self.base_s * prompt_tokens / self._longest if self._longest else _LOST_S

    def alone_s(self, prompt_tokens: int) -> float:
        """Return the time to first token of a prompt that nothing is in the way of, in seconds."""
        return self.base_s + self._reading_s(prompt_tokens)

    def wait_s(self, q: float) -> float:
        """Return the `q`-quantile of the rest, in seconds; 0 before three samples.

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
        alone = self.alone_s(prompt_tokens)
        return alone + self.wait_s(q) if self._sorted else alone
