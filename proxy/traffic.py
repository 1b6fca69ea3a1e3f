"""The last requests of every pool, kept for whoever wants to learn from them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from controller.observation import Observation
from proxy.hooks import Hooks

__all__ = ["Traffic"]

KEPT = 1000


class Traffic:
    """Stands between the core and the metrics, and remembers what passes."""

    def __init__(self, next_hooks: Hooks) -> None:
        self._next = next_hooks
        self._recent: dict[str, deque[Observation]] = {}
        self.batch_dispatched = next_hooks.batch_dispatched
        self.shed = next_hooks.shed
        self.traced = next_hooks.traced
        self.retried = next_hooks.retried
        self.fell_back = next_hooks.fell_back

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        """Remember one finished request and pass it on."""
        self.remember(obs)
        self._next.request_finished(obs, route, code)

    def remember(self, obs: Observation) -> None:
        """Remember one finished request."""
        recent = self._recent.get(obs.pool)
        if recent is None:
            recent = self._recent[obs.pool] = deque(maxlen=KEPT)
        recent.append(obs)

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of `pool`, oldest first."""
        return tuple(self._recent.get(pool, ()))
