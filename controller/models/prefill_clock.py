"""Until when an engine reads the prompts that it was sent, and which of them have no first token yet."""

from __future__ import annotations

from typing import Final

from policies.base import Job

__all__ = ["PrefillClock", "Sent"]

_REMEMBERED: Final = 4096
_TICKS_A_SECOND: Final = 1e6


class Sent:
    """One request on its way to its first token. Nobody changes one."""

    __slots__ = ("ahead_s", "at", "doubt_s", "expected_s", "job", "mark", "own_doubt_s", "total_tokens")

    def __init__(
        self,
        job: Job,
        at: float,
        total_tokens: float,
        ahead_s: float,
        expected_s: float,
        mark: float,
        doubt_s: float = 0.0,
        own_doubt_s: float = 0.0,
    ) -> None:
        self.job = job
        self.at = at
        self.total_tokens = total_tokens
        """Tokens in flight with it; 0 when not counted."""
        self.ahead_s = ahead_s
        """For how long prompts sent before were still to be read, in seconds."""
        self.expected_s = expected_s
        """When it should be read itself, in seconds from `at`."""
        self.mark = mark
        """Seconds of work the clock had been given by then, this one's included."""
        self.doubt_s = doubt_s
        """So much longer, in seconds, the prompts still to be read may take, and itself: some are longer than any
        that is known."""
        self.own_doubt_s = own_doubt_s


class PrefillClock:
    """One upstream's prompts, read one after the other; set back by every first token that shows it to be fast.

    A first token at `t` proves that all that was sent before it, and itself, has been read by `t`: what is left is
    what was sent since. So the clock never runs away from a server that reads side by side, reads nothing, or reads
    faster than was thought; and two first tokens never set it back for the same work twice.
    """

    __slots__ = ("_awaited", "_busy_until", "_doubt_s", "_sent", "_work", "most_s")

    def __init__(self) -> None:
        self._busy_until = 0.0
        self._work = 0.0
        self._doubt_s = 0.0
        self.most_s = 0.0
        """All that it was ever given to read, in seconds, doubts included."""
        self._sent: dict[int, list[Sent]] = {}
        """By when they were sent, in microseconds, oldest first."""
        self._awaited: dict[int, float] = {}
        """When those were sent whose first token will be seen."""

    def sent(
        self,
        job: Job,
        seconds: float,
        now: float,
        total_tokens: float = 0.0,
        *,
        streamed: bool = True,
        doubt_s: float = 0.0,
    ) -> Sent:
        """Take note of a prompt sent at `now` that takes `seconds` to read, or up to `doubt_s` longer.

        The first token of an answer that is not streamed is never seen; then its end proves that it was read.
        """
        self._doubt_s += doubt_s
        self.most_s += seconds + doubt_s
        free_at = self._busy_until if self._busy_until > now else now
        self._busy_until = free_at + seconds
        self._work += seconds
        ahead_s, expected_s = free_at - now, self._busy_until - now
        entry = Sent(job, now, total_tokens, ahead_s, expected_s, self._work, self._doubt_s, doubt_s)
        key = int(now * _TICKS_A_SECOND + 0.5)
        if streamed:
            self._awaited[key] = now
        beside = self._sent.get(key)
        if beside is None:
            self._sent[key] = [entry]
            if len(self._sent) > _REMEMBERED:
                self._drop(next(iter(self._sent)))
        else:
            beside.append(entry)
        return entry

    def first_token(self, at: float, now: float) -> Sent | None:
        """Take note that what was sent `at` has its first token `now`; None when that is known, or was never sent."""
        entry = self._take(at)
        if entry is not None:
            done = now + (self._work - entry.mark)
            if done < self._busy_until:
                self._busy_until = done
        return entry

    def gone(self, at: float) -> Sent | None:
        """Take note that what was sent `at` is over without a first token from here; None when it is not known."""
        return self._take(at)

    def ahead_s(self, now: float) -> float:
        """Return for how long the prompts that were sent will still be read, in seconds."""
        ahead = self._busy_until - now
        return ahead if ahead > 0.0 else 0.0

    def oldest_s(self, now: float) -> float:
        """Return for how long the oldest has waited for its first token, in seconds; 0 when none does."""
        for at in self._awaited.values():
            return now - at
        return 0.0

    def forget(self, before: float) -> None:
        """Forget what was sent before then and never came back."""
        while self._sent:
            key = next(iter(self._sent))
            if self._sent[key][0].at >= before:
                return
            self._drop(key)

    def _drop(self, key: int) -> None:
        for entry in self._sent.pop(key):
            self._read(entry)
        self._awaited.pop(key, None)

    def _read(self, entry: Sent) -> None:
        if entry.own_doubt_s:
            # A sum of floats must not creep away from zero over days.
            self._doubt_s = max(0.0, self._doubt_s - entry.own_doubt_s) if self._sent else 0.0

    def _take(self, at: float) -> Sent | None:
        key = int(at * _TICKS_A_SECOND + 0.5)
        for near in (key, key - 1, key + 1):  # who works the time out may be off by the last digit
            beside = self._sent.get(near)
            if beside is not None:
                entry = beside.pop(0)
                if not beside:
                    self._drop(near)
                self._read(entry)
                return entry
        return None
