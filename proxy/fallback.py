"""Why a pool could not take a request, in the words of `fallback.on`."""

from __future__ import annotations

from proxy.outcome import Infeasible, NoUpstream, QueueFull, Refused, Shed, UpstreamBusy, UpstreamFailed
from proxy.upstream.errors import Failure, UpstreamError

__all__ = ["cause_of"]

_UNSENT = frozenset({Failure.CONNECT.value, Failure.CONNECT_TIMEOUT.value})


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
    if isinstance(outcome, UpstreamFailed):
        return "no_upstream" if outcome.step in _UNSENT else "failure" if repeatable else ""
    return ""
