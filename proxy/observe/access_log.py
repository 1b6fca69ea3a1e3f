"""The access log: one line a request, of what we found out about it and nothing of what it carried.

Lines go to the logger `trimtab.access`. With the log off there is no `AccessLog` and nothing here runs.
"""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable
from typing import Any

from controller.observation import Observation, Result
from proxy.config.model import LogConfig
from proxy.http.request_fields import RequestFields
from proxy.request import Ticket

__all__ = ["AccessLog", "access_entry"]

_LOG = logging.getLogger("trimtab.access")
_UNREMARKABLE = frozenset({Result.OK, Result.CANCELLED})
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_REASONS = {Result.CANCELLED: "client_gone", Result.TIMEOUT: "upstream_timeout", Result.FAILED: "upstream_error"}
"""Why an answer that had begun did not end well."""


class AccessLog:
    """Writes `ratio` of the unremarkable requests, and every one that failed, was refused or timed out."""

    __slots__ = ("_draw", "_ratio")

    def __init__(self, ratio: float, draw: Callable[[], float] = random.random) -> None:
        self._ratio = ratio
        self._draw = draw

    @classmethod
    def of(cls, config: LogConfig) -> AccessLog | None:
        """Return the one that is configured; None for none."""
        return cls(config.access_ratio) if config.access else None

    def note(self, ticket: Ticket, fields: RequestFields, obs: Observation | None, now: float) -> None:
        """Write one finished request down. Without `obs` it never found a pool; probes are no traffic."""
        if obs is None:
            if ticket.result is Result.OK:
                return
            obs = ticket.observation("", now)
        if obs.result in _UNREMARKABLE and self._draw() >= self._ratio:
            return
        entry = access_entry(obs, ticket.route, ticket.code)
        entry["request_id"] = ticket.id
        entry["reason"] = ticket.reason or _reason(obs.result, ticket.code)
        entry["traceparent"] = _traceparent(fields)
        _LOG.info("%s %d %s", ticket.route, ticket.code, obs.result.value, extra=entry)


def access_entry(obs: Observation, route: str, code: int) -> dict[str, Any]:
    """Return one request as the fields of a log line. Nothing in it was written by the caller but the tenant."""
    return {
        "pool": obs.pool,
        "route": route,
        "class": obs.klass,
        "tenant": obs.tenant,
        "code": code,
        "result": obs.result.value,
        "upstream": obs.upstream,
        "arrival": round(obs.arrival, 6),
        "queue_ms": _ms(obs.queue_s),
        "service_ms": _ms(obs.service_s),
        "e2e_ms": _ms(obs.e2e_s),
        "ttft_ms": _ms(obs.ttft_s),
        "tpot_ms": _ms(obs.tpot_s),
        "prompt_tokens": obs.prompt_tokens,
        "output_tokens": obs.output_tokens,
        "batch": obs.batch,
        "generation": obs.generation,
    }


def _reason(result: Result, code: int) -> str:
    """Return why a request that was not refused ended as it did; "" where it ended well."""
    return "upstream_status" if result is Result.FAILED and code >= 400 else _REASONS.get(result, "")


def _traceparent(fields: RequestFields) -> str | None:
    """Return the trace that the caller put the request into (W3C Trace Context), if it is one."""
    for name, value in fields.forwarded:
        if name.lower() == b"traceparent" and _TRACEPARENT.fullmatch(value.strip()):
            return value.strip().decode("ascii")
    return None


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(1000.0 * value_s, 3)
