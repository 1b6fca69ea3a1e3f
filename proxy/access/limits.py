"""What one caller may use up: requests and tokens by the minute, and requests at once. Time is an argument."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

__all__ = ["Allowance", "Bucket", "Refusal"]


class Refusal(NamedTuple):
    """A limit that is used up."""

    reason: str
    """`rate_limited_requests`, `rate_limited_tokens` or `too_many_inflight`."""
    limit: str
    """The limit in words."""
    after_s: float
    """When trying again can succeed."""


class Bucket:
    """A token bucket: `burst` units when full, filled by `rate` units per second (Turner 1986, "leaky bucket").

    Whatever is taken within any `t` seconds is at most `burst + rate * t`, as long as no single cost exceeds
    `burst`. One that does waits for a full bucket and leaves it in debt, so that it is paid for afterwards instead of
    never being served. Constant time and memory; a clock that goes back fills nothing.
    """

    __slots__ = ("at", "burst", "level", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        if not (0.0 < rate < inf and 0.0 < burst < inf):
            raise ValueError("rate and burst must be positive and finite")
        self.rate = rate
        self.burst = burst
        self.level = burst
        self.at = now

    def wait_s(self, cost: float, now: float) -> float:
        """Return the seconds until `cost` can be taken; 0 when it can be now."""
        self._fill(now)
        missing = min(cost, self.burst) - self.level
        return missing / self.rate if missing > _DUST * self.burst else 0.0

    def take(self, cost: float, now: float) -> None:
        """Take `cost`, which `wait_s` allowed or which turned out to be due after all; may leave a debt."""
        self._fill(now)
        self.level -= cost

    def give_back(self, amount: float, now: float) -> None:
        """Return what was taken and not used; the bucket is never more than full."""
        self._fill(now)
        self.level = min(self.burst, self.level + amount)

    def _fill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.burst, self.level + self.rate * (now - self.at))
            self.at = now


_DUST = 1e-9
"""Share of a bucket that is rounding, not absence: who waits as long as told must not be short of it."""
_BUSY_AFTER_S = 1.0
"""When one of the caller's own requests will be over is not known; sooner makes little sense."""


class Allowance:
    """The limits of one key. What is admitted must be `settled` exactly once."""

    __slots__ = ("_max_inflight", "_requests", "_tokens", "inflight")

    def __init__(self, *, requests: Bucket | None, tokens: Bucket | None, max_inflight: int | None) -> None:
        self._requests = requests
        self._tokens = tokens
        self._max_inflight = max_inflight
        self.inflight = 0
        """Requests admitted and not settled."""

    def admit(self, tokens: float, now: float) -> Refusal | None:
        """Charge one request of `tokens` predicted tokens, all or nothing. Returns what stands against it."""
        if self._max_inflight is not None and self.inflight >= self._max_inflight:
            return Refusal("too_many_inflight", f"{self._max_inflight} requests at once", _BUSY_AFTER_S)
        requests, bucket = self._requests, self._tokens
        if requests is not None:
            wait = requests.wait_s(1.0, now)
            if wait > 0.0:
                return Refusal("rate_limited_requests", f"{60.0 * requests.rate:g} requests per minute", wait)
        if bucket is not None:
            wait = bucket.wait_s(tokens, now)
            if wait > 0.0:
                return Refusal("rate_limited_tokens", f"{60.0 * bucket.rate:g} tokens per minute", wait)
            bucket.take(tokens, now)
        if requests is not None:
            requests.take(1.0, now)
        self.inflight += 1
        return None

    def settle(self, predicted: float, used: float, now: float) -> None:
        """End a request that was admitted with `predicted` tokens and used `used`."""
        self.inflight -= 1
        bucket = self._tokens
        if bucket is None:
            return
        if used > predicted:
            bucket.take(used - predicted, now)
        elif used < predicted:
            bucket.give_back(predicted - used, now)
