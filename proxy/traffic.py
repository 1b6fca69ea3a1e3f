"""The last requests of every pool, kept for whoever wants to learn from them again, and the access log."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from controller.observation import Observation, Result
from proxy.config.model import LogConfig
from proxy.hooks import Hooks

__all__ = ["Traffic", "access_entry"]

KEPT = 1000
_ACCESS = logging.getLogger("trimtab.access")
_UNREMARKABLE = frozenset({Result.OK, Result.CANCELLED})


class Traffic:
    """Stands between the core and the metrics, remembers what passes, and writes it down when asked to.

    Of unremarkable requests `log.access_ratio` are written; those that failed, were refused or timed out always.
    """

    def __init__(self, next_hooks: Hooks, log: LogConfig, draw: Callable[[], float] = random.random) -> None:
        self._next = next_hooks
        self._draw = draw
        self._recent: dict[str, deque[Observation]] = {}
        self.configure(log)
        self.batch_dispatched = next_hooks.batch_dispatched
        self.shed = next_hooks.shed
        self.retried = next_hooks.retried

    def configure(self, log: LogConfig) -> None:
        """Follow a reload."""
        self._access = log.access
        self._ratio = log.access_ratio

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """Remember one finished request and pass it on."""
        recent = self._recent.get(obs.pool)
        if recent is None:
            recent = self._recent[obs.pool] = deque(maxlen=KEPT)
        recent.append(obs)
        self._next.request_finished(obs, route, code)
        if self._access and (obs.result not in _UNREMARKABLE or self._draw() < self._ratio):
            _ACCESS.info("%s %d %s", route, code, obs.result.value, extra=access_entry(obs, route, code))

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of `pool`, oldest first."""
        return tuple(self._recent.get(pool, ()))


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


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(1000.0 * value_s, 3)
