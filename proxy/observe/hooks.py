"""What the core tells whoever counts and logs. Every method is called on the hot path and must be cheap."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Protocol

from mypy_extensions import mypyc_attr

from controller.observation import Observation

__all__ = ["ClosedBy", "Hooks", "NullHooks", "PassingHooks"]


class ClosedBy(StrEnum):
    """Why a batch went when it did."""

    FULL = "size"
    """No more items would have fitted."""
    TOKENS = "tokens"
    """No more tokens would have fitted."""
    WINDOW = "window"
    """The first of it had waited the window out."""
    IDLE = "idle"
    """An upstream had nothing to do and waiting promised nothing."""
    EXPRESS = "express"
    """One of it does not wait for windows."""
    DEADLINE = "deadline"
    """One of it could not have waited the window out."""
    DRAIN = "drain"
    """The pool is going away."""


class Hooks(Protocol):
    """Counts what happens; `proxy.observe.metrics.Metrics` is the real one."""

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """One request is over; called exactly once for each. `code` is the status sent, 499 if the client left."""
        ...

    def traced(self, obs: Observation, trace_id: str) -> None:
        """A request that is over, and was counted, belongs to a trace."""
        ...

    def shed(self, pool: str, reason: str) -> None:
        """One request was refused on arrival or dropped from the queue."""
        ...

    def batch_dispatched(self, pool: str, size: int, closed_by: str) -> None:
        """One upstream call of `size` items left the batcher, because of `closed_by`."""
        ...

    def window_waited(self, pool: str, seconds: float) -> None:
        """One upstream call was held back by the batching window alone. Not called for those that were not."""
        ...

    def retried(self, pool: str) -> None:
        """One upstream call was sent again."""
        ...

    def asked_in_vain(self, pool: str, upstream: str, status: int) -> None:
        """One upstream call failed and another one was made for it: with `status`, 0 when there was no answer."""
        ...

    def fell_back(self, pool: str, to: str, cause: str) -> None:
        """One request that `pool` could not take went to the pool `to`, because of `cause`."""
        ...

    def followed_up(self, pool: str, result: str) -> None:
        """One request referred to something that an upstream keeps: it was `kept`, `away` or `unknown`."""
        ...


class NullHooks:
    """Counts nothing."""

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """Ignore it."""

    def traced(self, obs: Observation, trace_id: str) -> None:
        """Ignore it."""

    def shed(self, pool: str, reason: str) -> None:
        """Ignore it."""

    def batch_dispatched(self, pool: str, size: int, closed_by: str) -> None:
        """Ignore it."""

    def window_waited(self, pool: str, seconds: float) -> None:
        """Ignore it."""

    def retried(self, pool: str) -> None:
        """Ignore it."""

    def asked_in_vain(self, pool: str, upstream: str, status: int) -> None:
        """Ignore it."""

    def fell_back(self, pool: str, to: str, cause: str) -> None:
        """Ignore it."""

    def followed_up(self, pool: str, result: str) -> None:
        """Ignore it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PassingHooks(ABC):
    """Stands before other hooks and passes everything on, without a call of its own but for finished requests."""

    def __init__(self, next_hooks: Hooks) -> None:
        self._next = next_hooks
        self.batch_dispatched = next_hooks.batch_dispatched
        self.window_waited = next_hooks.window_waited
        self.shed = next_hooks.shed
        self.traced = next_hooks.traced
        self.retried = next_hooks.retried
        self.asked_in_vain = next_hooks.asked_in_vain
        self.fell_back = next_hooks.fell_back
        self.followed_up = next_hooks.followed_up

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """Note one finished request and pass it on."""
        self.remember(obs)
        self._next.request_finished(obs, route, code)

    @abstractmethod
    def remember(self, obs: Observation) -> None:
        """Note one finished request."""
