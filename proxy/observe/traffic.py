"""The last requests of every pool, kept for whoever wants to learn from them again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from controller.observation import Observation
from proxy.observe.hooks import Hooks, PassingHooks

__all__ = ["Traffic"]

KEPT: Final = 1000


class Traffic(PassingHooks):
    """Stands between the core and the metrics, and remembers what passes."""

    def __init__(self, next_hooks: Hooks) -> None:
        super().__init__(next_hooks)
        self._recent: dict[str, deque[Observation]] = {}

    def remember(self, obs: Observation) -> None:
        """Remember one finished request."""
        recent = self._recent.get(obs.pool)
        if recent is None:
            recent = self._recent[obs.pool] = deque(maxlen=KEPT)
        recent.append(obs)

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of `pool`, oldest first."""
        return tuple(self._recent.get(pool, ()))
