"""What is in front of a newcomer: the pool's state at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MAX_RUNNING", "Load"]

MAX_RUNNING = 64
"""At most so many calls in flight are described one by one; the oldest are."""


@dataclass(slots=True)
class Load:
    """A pool's queue and upstream calls, as they stand when a decision is made.

    Nobody changes one. That it is not declared frozen halves the cost of making it, several times a request.
    """

    queued: int = 0
    """Requests waiting (merge: items)."""
    queued_tokens: float = 0.0
    """Predicted work waiting: prompt tokens plus predicted output tokens."""
    inflight: int = 0
    """merge: items at the upstreams. gate: sequences there."""
    inflight_tokens: float = 0.0
    """gate: prompt plus expected output tokens of the sequences in flight; 0 when not counted."""
    inflight_calls: int = 0
    """Upstream calls in flight."""
    running: Sequence[float] = ()
    """Dispatch times of calls in flight, oldest first, at most MAX_RUNNING of them."""
    running_batches: Sequence[int] = ()
    """Batch sizes of the same calls, parallel to `running`."""
    slots: int = 1
    """How many upstream calls may be in flight at once (merge: upstreams times depth)."""
    inflight_express: int = 0
    """gate: how many of the sequences in flight are of express classes."""
    app_limited: bool = False
    """Since the last tick the setpoints never held work back, so a clean record says nothing about more."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return self.queued == 0 and self.inflight == 0 and self.inflight_calls == 0
