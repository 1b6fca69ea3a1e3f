"""When an upstream is taken out for failing, and when it is tried again. Pure: time is an argument."""

from __future__ import annotations

from math import inf
from typing import Final

from proxy.upstream.health import Health

__all__ = ["HealthRules", "Standing"]

_MANY_BREAKS: Final = 2
_RECENT_S: Final = 10.0
"""For so long a row of breaks says something about now."""
_APART_S: Final = 1.0
"""Timeouts so far apart are failures of their own, though the calls were sent before the first of them."""


class HealthRules:
    """When an upstream is taken out and when it comes back (seconds and counts)."""

    __slots__ = ("eject_after", "healthy_after", "trial_s", "unhealthy_after")

    def __init__(
        self, *, eject_after: int = 5, trial_s: float = 1.0, unhealthy_after: int = 3, healthy_after: int = 1
    ) -> None:
        self.eject_after = eject_after
        self.trial_s = trial_s
        """Between two trials of an ejected upstream."""
        self.unhealthy_after = unhealthy_after
        self.healthy_after = healthy_after


class Standing:
    """What one upstream's failures add up to.

    One event is one failure: whatever was under way when a connection broke broke with it, so only a call that was
    sent after the last failure can fail anew. Several failures in a row eject. An ejected upstream is tried at once
    and then every `trial_s`, with one request at a time; a good answer ends it. An upstream that accepts no
    connection is unreachable until it does, and has a clean record then: a restart is over when it is over.
    """

    __slots__ = (
        "_breaks",
        "_broke_at",
        "_event_at",
        "_probes_bad",
        "_probes_good",
        "_rules",
        "_trial_at",
        "down",
        "failures_in_row",
        "sound",
        "trial",
        "unreachable",
    )

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self.sound = True
        """Whether nothing at all speaks against it."""
        self.failures_in_row = 0
        """Failures since the last answer, each an event of its own."""
        self.unreachable = False
        """Whether it refused a connection, and has accepted none since."""
        self.down = False
        """Whether its health check fails."""
        self.trial = False
        """Whether an ejected upstream's one trial is under way."""
        self._breaks = 0
        """Calls in a row that were lost to their callers, each an event of its own."""
        self._broke_at = -inf
        self._event_at = -inf
        self._trial_at = -inf
        self._probes_bad = 0
        self._probes_good = 0

    # -- may it be asked? ----------------------------------------------------------------------------------

    @property
    def ejected(self) -> bool:
        """Whether it failed too often in a row."""
        return self.failures_in_row >= self._rules.eject_after

    @property
    def reachable(self) -> bool:
        """Whether there is any hope in asking it."""
        return not (self.unreachable or self.down)

    def admits(self, now: float) -> bool:
        """Whether it may have more while others are there; of an ejected one, whether a trial is due."""
        if self.sound:
            return True
        if self.unreachable or self.down:
            return False
        return not self.ejected or (now >= self._trial_at and not self.trial)

    def breaks_off(self, now: float) -> bool:
        """Whether it has lately broken off twice in a row, and brought no answer to its end since."""
        return self._breaks >= _MANY_BREAKS and now - self._broke_at < _RECENT_S

    # -- what became of what it was asked ------------------------------------------------------------------

    def failed(self, now: float, since: float, *, timeout: bool = False) -> bool:
        """A call that was sent at `since` broke or timed out. Returns whether that is an event of its own."""
        if since < self._event_at and not (timeout and now >= self._event_at + _APART_S):
            return False
        first = not self.ejected
        self._event_at = now
        self.failures_in_row += 1
        self.sound = False
        if not timeout:
            self.broke(now, since)
        if self.ejected:
            self._trial_at = now if first else now + self._rules.trial_s
        return True

    def broke(self, now: float, since: float) -> None:
        """A call that was sent at `since` was lost: it broke off, or its stream ended badly."""
        if since < self._broke_at:
            return
        self._breaks = self._breaks + 1 if now - self._broke_at < _RECENT_S else 1
        self._broke_at = now

    def completed(self) -> None:
        """It brought an answer to its good end."""
        self._breaks = 0

    def refused(self, now: float) -> bool:
        """It accepted no connection. Returns whether that is news."""
        news = not self.unreachable
        self.unreachable = True
        self.sound = False
        # Whatever breaks now broke by the same event.
        self._event_at = now
        return news

    def accepted(self) -> bool:
        """It accepted a connection. Returns whether that brought it back."""
        if not self.unreachable:
            return False
        self.unreachable = False
        self._breaks = 0
        self._forgive()
        return True

    def answered(self) -> bool:
        """It answered. Returns whether that ended an ejection."""
        back = self.ejected
        self._forgive()
        return back

    def probed(self, health: Health, now: float, *, proves: bool) -> bool:
        """Take in one health check. Returns whether it decided anew whether the upstream can be asked.

        `proves` says whether a good one shows that requests are answered, and not merely that a port is open.
        """
        before, returned = self.reachable, False
        if health is Health.GONE:
            self.refused(now)
        else:
            returned = self.accepted()
        if health is Health.WELL:
            self._probes_bad = 0
            self._probes_good += 1
            if proves:
                self._trial_at = -inf
                self._breaks = 0
            if self.down and self._probes_good >= self._rules.healthy_after:
                self.down = False
                self._forgive()
        else:
            self._probes_good = 0
            self._probes_bad += 1
            # What has just come back and says that it is not well yet is still starting.
            if self._probes_bad >= self._rules.unhealthy_after or (returned and proves):
                self.down = True
                self.sound = False
        return self.reachable is not before

    def follow(self, before: Standing) -> None:
        """Take over what was known of the same upstream before a reload."""
        self.failures_in_row, self.unreachable, self.down = before.failures_in_row, before.unreachable, before.down
        self._event_at, self._trial_at = before._event_at, before._trial_at
        self._breaks, self._broke_at = before._breaks, before._broke_at
        self.sound = not (self.failures_in_row or self.unreachable or self.down)

    def _forgive(self) -> None:
        self.failures_in_row = 0
        self.sound = not (self.unreachable or self.down)
