"""One upstream: its connections, what it is doing for us, and whether it should get more."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Any, Final

from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.reported import Reported

__all__ = ["Endpoint", "HealthRules", "State"]

_MAX_EJECTION_FACTOR: Final = 10.0
_MAX_OVERLOAD_S: Final = 30.0
_FAILURE_GAIN: Final = 0.1
_FAILURE_PENALTY: Final = 20.0
_LEAST_SHARE: Final = 0.1
_NOT_YET: Final = -1.0


class State(StrEnum):
    """Whether an upstream may be asked."""

    UP = "up"
    OVERLOADED = "overloaded"
    """It said 429 or 503: alive, but left alone for a moment when there is another."""
    EJECTED = "ejected"
    """It failed several requests in a row: one trial at a time until one succeeds."""
    DOWN = "down"
    """Its health check fails."""
    DRAINING = "draining"
    """An operator takes it out: it gets nothing new and finishes what it has."""
    DRAINED = "drained"
    """It has finished what it had."""


class HealthRules:
    """When an upstream is taken out and when it comes back (seconds and counts)."""

    __slots__ = ("eject_after", "eject_s", "healthy_after", "unhealthy_after")

    def __init__(
        self, *, eject_after: int = 5, eject_s: float = 10.0, unhealthy_after: int = 3, healthy_after: int = 1
    ) -> None:
        self.eject_after = eject_after
        self.eject_s = eject_s
        self.unhealthy_after = unhealthy_after
        self.healthy_after = healthy_after


class Endpoint:
    """One upstream's state. Time is an argument: nothing here reads a clock."""

    __slots__ = (
        "_ejections",
        "_overload_s",
        "_probes_bad",
        "_probes_good",
        "_ramp_s",
        "_ramp_since",
        "_rules",
        "address",
        "connections",
        "credential",
        "down",
        "draining",
        "ejected_until",
        "failure_rate",
        "failures_in_row",
        "hash_key",
        "health_path",
        "hints",
        "host_line",
        "inflight",
        "model",
        "name",
        "overloaded_until",
        "profile",
        "proven",
        "reported",
        "served",
        "strips_credentials",
        "trial",
        "weight",
        "work",
    )

    def __init__(
        self,
        address: Address,
        connections: ConnectionPool,
        *,
        weight: float = 1.0,
        profile: str = "auto",
        model: str | None = None,
        credential: bytes | None = None,
        strips_credentials: bool = False,
        health_path: str | None = None,
        hints: bool = False,
        rules: HealthRules | None = None,
        slow_start_s: float = 0.0,
    ) -> None:
        self.address = address
        self.name = address.url
        self.connections = connections
        self.weight = weight
        self.profile = profile
        self.model = model
        """Model name to send instead of the caller's; None keeps it."""
        self.credential = credential
        """Header line with the credential to send, ended by CRLF; None when it has none of its own."""
        self.strips_credentials = strips_credentials
        """Whether the caller's own credentials go no further."""
        self.hash_key = blake2b(self.name.encode(), digest_size=32).digest()
        """Stands for it where requests are spread by hashing."""
        self.hints = hints
        """Whether it wants to know how long answers will be."""
        self.health_path = health_path
        """Probed with GET; None where only connecting tells."""
        self.host_line = b" HTTP/1.1\r\nHost: %b\r\n" % address.authority
        self._rules = rules or HealthRules()
        self.inflight = 0
        """Calls under way."""
        self.work = 0.0
        """Predicted work under way, in tokens."""
        self.served = 0
        self.failure_rate = 0.0
        """Moving average of failures and overloads, 0 to 1."""
        self.failures_in_row = 0
        self.ejected_until = 0.0
        self.overloaded_until = 0.0
        self.down = False
        self.draining = False
        """Whether an operator wants it to get nothing new."""
        self.reported: Reported | None = None
        """What it said last about its own load; None where it is not asked."""
        self._ramp_s = slow_start_s
        self._ramp_since: float | None = None
        """Since when it is being eased in; None when it has its whole weight."""
        self.proven = False
        """Whether it has been well at least once: answered a request, or passed a health check."""
        self.trial = False
        """Whether an ejected upstream's one trial is under way."""
        self._ejections = 0
        self._overload_s = 0.0
        self._probes_bad = 0
        self._probes_good = 0

    # -- may it be asked? ----------------------------------------------------------------------------------

    def state(self, now: float) -> State:
        """Return its state at `now`."""
        if self.draining:
            return State.DRAINING if self.inflight else State.DRAINED
        if self.down:
            return State.DOWN
        if self.failures_in_row >= self._rules.eject_after:
            return State.EJECTED
        if now < self.overloaded_until:
            return State.OVERLOADED
        return State.UP

    def available(self, now: float) -> bool:
        """Whether it is the first choice for more work."""
        if self.draining:
            return False
        if self.failures_in_row == 0 and not self.down and self.overloaded_until == 0.0:
            return True
        if self.down:
            return False
        if self.failures_in_row >= self._rules.eject_after:
            return now >= self.ejected_until and not self.trial
        return now >= self.overloaded_until

    def last_resort(self, now: float) -> bool:
        """Whether it may be asked when no endpoint is a first choice: overloaded ones may, ejected ones not."""
        return not self.down and not self.draining and self.failures_in_row < self._rules.eject_after

    def retry_after_s(self, now: float) -> float:
        """Return when asking it is expected to make sense again."""
        return max(1.0, self.ejected_until - now, self.overloaded_until - now)

    def share(self, now: float) -> float:
        """Return its weight, or what it has of it so far while it is being eased in."""
        since = self._ramp_since
        if since is None:
            return self.weight
        if since == _NOT_YET:
            since = self._ramp_since = now
        age = now - since
        if age >= self._ramp_s:
            self._ramp_since = None
            return self.weight
        return self.weight * max(_LEAST_SHARE, age / self._ramp_s)

    def ease_in(self) -> None:
        """Let its weight grow from a tenth to its whole, from when it is next looked at."""
        if self._ramp_s > 0.0:
            self._ramp_since = _NOT_YET

    def follow(self, before: Endpoint | None) -> None:
        """Take over what was known of the same upstream before a reload; None: it is new and is eased in."""
        if before is None:
            self.ease_in()
            return
        self.proven, self.draining, self.down = before.proven, before.draining, before.down
        self.failure_rate, self.failures_in_row = before.failure_rate, before.failures_in_row
        self.ejected_until, self._ejections = before.ejected_until, before._ejections
        self.overloaded_until, self._overload_s = before.overloaded_until, before._overload_s

    def score(self, work: float, now: float) -> float:
        """Return the work outstanding relative to the weight.

        It is raised, by what `work` tokens more would be, for whoever fails: failing fast must not look like
        being fast.
        """
        outstanding = self.work + self.inflight
        if self.failure_rate:
            outstanding += _FAILURE_PENALTY * self.failure_rate * (outstanding + work + 1.0)
        return outstanding / self.share(now)

    def entered(self, work: float) -> bool:
        """Count one more call in. Returns whether it is the one trial of an ejected upstream."""
        self.inflight += 1
        self.work += work
        if self.failures_in_row >= self._rules.eject_after and not self.trial:
            self.trial = True
            return True
        return False

    def left(self, work: float, trial: bool) -> None:
        """Count one call out again."""
        self.inflight -= 1
        # A sum of floats must not creep away from zero over days.
        self.work = self.work - work if self.inflight else 0.0
        if trial:
            self.trial = False

    # -- what became of what it was asked ------------------------------------------------------------------

    def succeeded(self) -> None:
        """It answered, whatever the answer."""
        self.served += 1
        self.proven = True
        if self.failure_rate > 0.0:
            self.failure_rate *= 1.0 - _FAILURE_GAIN
            if self.failure_rate < 1e-3:
                self.failure_rate = 0.0
        if self.failures_in_row or self._ejections:
            if self.failures_in_row >= self._rules.eject_after:
                self.ease_in()
            self.failures_in_row = 0
            self._ejections = 0
            self.ejected_until = 0.0
        if self.overloaded_until:
            self.overloaded_until = 0.0
            self._overload_s = 0.0

    def errored(self) -> None:
        """It answered that it failed: alive, but not to be preferred for being quick about it."""
        self.served += 1
        self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        self.failures_in_row = 0

    def failed(self, now: float) -> bool:
        """It broke or timed out. Returns whether this ejected it."""
        self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        self.failures_in_row += 1
        if self.failures_in_row < self._rules.eject_after:
            return False
        factor = min(_MAX_EJECTION_FACTOR, 2.0**self._ejections)
        self._ejections += 1
        self.ejected_until = now + self._rules.eject_s * factor
        return True

    def overloaded(self, now: float, retry_after_s: float | None) -> None:
        """It said 429 or 503: back off for what it asked, else twice as long each time."""
        self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        self._overload_s = min(_MAX_OVERLOAD_S, max(0.5, 2.0 * self._overload_s))
        wait = self._overload_s if retry_after_s is None else min(_MAX_OVERLOAD_S, max(0.1, retry_after_s))
        self.overloaded_until = now + wait

    def probed(self, ok: bool, *, proven: bool = True) -> bool:
        """Take in one health check. Returns whether the endpoint went up or down by it.

        `proven` says whether a good one shows that requests are answered, so that an ejection may end early.
        """
        if ok:
            self.proven = True
            self._probes_bad = 0
            self._probes_good += 1
            if proven and self.failures_in_row >= self._rules.eject_after:
                self.ejected_until = 0.0
            if self.down and self._probes_good >= self._rules.healthy_after:
                self.down = False
                self.failures_in_row = 0
                self.ease_in()
                return True
            return False
        self._probes_good = 0
        self._probes_bad += 1
        if not self.down and self._probes_bad >= self._rules.unhealthy_after:
            self.down = True
            return True
        return False

    def stats(self, now: float) -> dict[str, Any]:
        """Return its state, JSON-ready."""
        return {
            "url": self.name,
            "state": self.state(now).value,
            "inflight": self.inflight,
            "work_tokens": round(self.work, 1),
            "served": self.served,
            "failure_rate": round(self.failure_rate, 4),
            "failures_in_row": self.failures_in_row,
            "connections_open": self.connections.open,
            "connections_idle": self.connections.idle,
            "weight": self.weight,
            "share": round(self.share(now), 4),
            "profile": self.profile,
            "reported": None if self.reported is None else self.reported.stats(now),
        }
