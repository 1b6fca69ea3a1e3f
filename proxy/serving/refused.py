"""A refusal that a pool is told of, though it was never asked."""

from __future__ import annotations

from proxy.dispatch.pool import Pool
from proxy.outcome import Outcome, Refused

__all__ = ["RefusedFor"]


class RefusedFor(Refused):
    """Refused for what the request says or brings, before it came to `pool`, which it counts for."""

    def __init__(self, pool: Pool, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.pool = pool
