"""Why a pool could not take a request, in the words of `fallback.on`."""

from __future__ import annotations

from proxy.outcome import (
    Infeasible,
    NoUpstream,
    QueueFull,
    Refused,
    Shed,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
)
from proxy.upstream.errors import UNREACHABLE, Failure, UpstreamError

__all__ = ["cause_of", "is_nobody_there"]

_UNREACHABLE = frozenset([failure.value for failure in UNREACHABLE])
_UNSENT = _UNREACHABLE | {Failure.TLS.value, Failure.CONNECTIONS_BUSY.value}


def cause_of(error: Refused | UpstreamError, *, repeatable: bool) -> str:
    """Return `no_upstream`, `overload` or `failure`; "" for what another pool is not to be asked about.

    That is the caller's own fault or limit, a deadline that has passed, and a call that may not be repeated.
    """
    if isinstance(error, UpstreamError):
        if error.unsent:
            return "no_upstream"
        return "failure" if repeatable and not error.is_timeout else ""
    outcome = error.outcome
    if isinstance(outcome, NoUpstream):
        return "no_upstream"
    if isinstance(outcome, QueueFull | Infeasible | Shed | UpstreamBusy):
        return "overload"
    if isinstance(outcome, UpstreamTimeout):
        return "no_upstream" if outcome.step in _UNSENT else ""
    if isinstance(outcome, UpstreamFailed):
        return "no_upstream" if outcome.step in _UNSENT else "failure" if repeatable else ""
    return ""


def is_nobody_there(error: Refused | UpstreamError) -> bool:
    """Whether a request went nowhere because no upstream could be connected to: one that comes back can be asked."""
    if isinstance(error, UpstreamError):
        return error.failure in UNREACHABLE
    outcome = error.outcome
    if isinstance(outcome, UpstreamFailed | UpstreamTimeout):
        return outcome.step in _UNREACHABLE
    return isinstance(outcome, NoUpstream)
