"""One upstream: its connections, what it is doing for us, and whether it should get more."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from math import inf
from typing import Any, Final

from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.health import Health
from proxy.upstream.reported import Reported
from proxy.upstream.standing import HealthRules, Standing

__all__ = ["Endpoint", "HealthRules", "State"]

_MAX_BACKOFF_S: Final = 30.0
"""The longest that an upstream is left alone which does not say for how long."""
_MAX_RETRY_AFTER_S: Final = 300.0
"""The longest that one is left alone which does."""
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
    """It failed several requests in a row: one trial at a time until one succeeds. Or it accepts no connection."""
    DOWN = "down"
    """Its health check fails."""
    DRAINING = "draining"
    """An operator takes it out: it gets nothing new and finishes what it has."""
    DRAINED = "drained"
    """It has finished what it had."""


class Endpoint:
    """One upstream's state. Time is an argument: nothing here reads a clock."""

    __slots__ = (
        "_overload_s",
        "_overloaded_at",
        "_ramp_s",
        "_ramp_since",
        "address",
        "connections",
        "credential",
        "draining",
        "failure_rate",
        "hash_key",
        "health_path",
        "health_prefix",
        "hints",
        "host_line",
        "inflight",
        "marks",
        "model",
        "name",
        "overloaded_until",
        "prefix",
        "profile",
        "proven",
        "reported",
        "served",
        "standing",
        "strips_credentials",
        "versioned",
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
        self.health_prefix = address.prefix if health_path is None else address.prefix_for(health_path.encode())
        """What goes before that."""
        self.prefix = address.prefix
        self.versioned = address.prefix != address.root
        """Whether the prefix ends in a version, which requests may bring along themselves."""
        """Probed with GET; None where only connecting tells."""
        self.host_line = b" HTTP/1.1\r\nHost: %b\r\n" % address.authority
        self.standing = Standing(rules or HealthRules())
        """What its failures add up to."""
        self.inflight = 0
        """Calls under way."""
        self.work = 0.0
        """Predicted work under way, in tokens."""
        self.served = 0
        self.failure_rate = 0.0
        """Moving average of failures and overloads, 0 to 1."""
        self.overloaded_until = 0.0
        self.draining = False
        """Whether an operator wants it to get nothing new."""
        self.reported: Reported | None = None
        """What it said last about its own load; None where it is not asked."""
        self._ramp_s = slow_start_s
        self._ramp_since: float | None = None
        """Since when it is being eased in; None when it has its whole weight."""
        self.proven = False
        """Whether it has been well at least once: answered a request, or passed a health check."""
        self.marks: set[str] = set()
        """Routes and models whose streams it has shown to end with the protocol's mark; a bounded number."""
        self._overload_s = 0.0
        self._overloaded_at = -inf
        """When it last said that it had too much to do."""

    # -- may it be asked? ----------------------------------------------------------------------------------

    def state(self, now: float) -> State:
        """Return its state at `now`."""
        standing = self.standing
        if self.draining:
            return State.DRAINING if self.inflight else State.DRAINED
        if standing.down:
            return State.DOWN
        if standing.ejected or standing.unreachable:
            return State.EJECTED
        if now < self.overloaded_until:
            return State.OVERLOADED
        return State.UP

    @property
    def reachable(self) -> bool:
        """Whether there is any hope in asking it: nobody takes it out, it accepts connections, its check passes."""
        return not self.draining and self.standing.reachable

    def available(self, now: float) -> bool:
        """Whether it is the first choice for more work."""
        if self.draining:
            return False
        if self.overloaded_until == 0.0 and self.standing.sound:
            return True
        return now >= self.overloaded_until and self.standing.admits(now)

    def last_resort(self, now: float) -> bool:
        """Whether it may be asked when no endpoint is a first choice: overloaded ones may, ejected ones not."""
        return self.reachable and not self.standing.ejected

    def retry_after_s(self, now: float) -> float:
        """Return when asking it is expected to make sense again."""
        return max(1.0, self.overloaded_until - now)

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
        self.proven, self.draining, self.failure_rate = before.proven, before.draining, before.failure_rate
        self.marks = before.marks
        self.standing.follow(before.standing)
        self.overloaded_until, self._overload_s = before.overloaded_until, before._overload_s
        self._overloaded_at = before._overloaded_at

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
        standing = self.standing
        if standing.sound or standing.trial or not standing.ejected:
            return False
        standing.trial = True
        return True

    def left(self, work: float, trial: bool) -> None:
        """Count one call out again."""
        self.inflight -= 1
        # A sum of floats must not creep away from zero over days.
        self.work = self.work - work if self.inflight else 0.0
        if trial:
            self.standing.trial = False

    # -- what became of what it was asked ------------------------------------------------------------------

    def succeeded(self, since: float = inf) -> None:
        """It answered a call that was sent at `since`, whatever the answer. Its end may be still to come."""
        self.served += 1
        self.proven = True
        if not self.standing.sound and self.standing.answered():
            self.ease_in()
        # What was sent before it said `not now` says nothing about now.
        if self.overloaded_until and since >= self._overloaded_at:
            self.overloaded_until = 0.0
            self._overload_s = 0.0

    def completed(self) -> None:
        """It brought an answer to its good end. That need not be said while its failure rate is 0."""
        self.failure_rate *= 1.0 - _FAILURE_GAIN
        if self.failure_rate < 1e-3:
            self.failure_rate = 0.0
        self.standing.completed()

    def errored(self) -> None:
        """It answered that it failed: alive, but not to be preferred for being quick about it."""
        self.served += 1
        self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        if not self.standing.sound:
            self.standing.answered()

    def spoiled(self, now: float, since: float) -> None:
        """It ended the stream of a call that was sent at `since` badly, when part of it had been passed on."""
        self.errored()
        self.standing.broke(now, since)

    def failed(self, now: float, since: float | None = None, *, timeout: bool = False) -> bool:
        """A call that was sent at `since` broke or timed out. Returns whether it is ejected by that.

        Whatever was under way when it failed last belongs to the same event, and counts for nothing more.
        """
        before = self.standing.ejected
        if self.standing.failed(now, now if since is None else since, timeout=timeout):
            self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        return self.standing.ejected and not before

    def refused(self, now: float) -> bool:
        """It accepted no connection. Returns whether that is news."""
        return self.standing.refused(now)

    def accepted(self) -> bool:
        """It accepted a connection. Returns whether that brought it back."""
        back = self.standing.accepted()
        if back:
            self.ease_in()
        return back

    def overloaded(self, now: float, retry_after_s: float | None, since: float = inf) -> None:
        """It answered a call sent at `since` with 429 or 503: leave it alone for what it asked.

        Where it does not say, twice as long each time. Only what was sent after the last such answer can shorten
        what that one asked for.
        """
        self.failure_rate += _FAILURE_GAIN * (1.0 - self.failure_rate)
        news = since >= self._overloaded_at
        if news:
            self._overloaded_at = now
        if retry_after_s is not None:
            until = now + min(_MAX_RETRY_AFTER_S, max(0.1, retry_after_s))
            self.overloaded_until = until if news else max(until, self.overloaded_until)
            return
        if news:
            self._overload_s = min(_MAX_BACKOFF_S, max(0.5, 2.0 * self._overload_s))
        self.overloaded_until = max(self.overloaded_until, now + self._overload_s)

    def probed(self, health: Health, now: float, *, proves: bool = True) -> bool:
        """Take in one health check. Returns whether it decided anew whether the upstream can be asked.

        `proves` says whether a good one shows that requests are answered, and not merely that a port is open.
        """
        if health is Health.WELL:
            self.proven = True
        changed = self.standing.probed(health, now, proves=proves)
        if changed and self.standing.reachable:
            self.ease_in()
        return changed

    def stats(self, now: float) -> dict[str, Any]:
        """Return its state, JSON-ready."""
        return {
            "url": self.name,
            "state": self.state(now).value,
            "inflight": self.inflight,
            "work_tokens": round(self.work, 1),
            "served": self.served,
            "failure_rate": round(self.failure_rate, 4),
            "failures_in_row": self.standing.failures_in_row,
            "connections_open": self.connections.open,
            "connections_idle": self.connections.idle,
            "weight": self.weight,
            "share": round(self.share(now), 4),
            "profile": self.profile,
            "reported": None if self.reported is None else self.reported.stats(now),
        }
