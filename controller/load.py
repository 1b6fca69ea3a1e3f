"""What is in front of a newcomer: the pool's state at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["MAX_RUNNING", "Load"]

MAX_RUNNING: Final = 64
"""At most so many calls in flight are described one by one; the oldest are."""


@dataclass(slots=True, init=False)
class Load:
    """A pool's queue and upstream calls, as they stand when a decision is made.

    Nobody changes one. That it is not declared frozen halves the cost of making it, several times a request.
    """

    queued: int
    """Requests waiting (merge: items)."""
    queued_tokens: float
    """Predicted work waiting: prompt tokens plus predicted output tokens."""
    inflight: int
    """merge: items at the upstreams. gate: sequences there."""
    inflight_tokens: float
    """gate: prompt plus expected output tokens of the sequences in flight; 0 when not counted."""
    inflight_calls: int
    """Upstream calls in flight."""
    running: Sequence[float]
    """Dispatch times of calls in flight, oldest first, at most MAX_RUNNING of them."""
    running_batches: Sequence[int]
    """Batch sizes of the same calls, parallel to `running`."""
    slots: int
    """How many upstream calls may be in flight at once (merge: upstreams times depth)."""
    inflight_express: int
    """gate: how many of the sequences in flight are of express classes."""
    app_limited: bool
    """Since the last tick the setpoints never held work back, so a clean record says nothing about more."""

    def __init__(
        self,
        queued: int = 0,
        queued_tokens: float = 0.0,
        inflight: int = 0,
        inflight_tokens: float = 0.0,
        inflight_calls: int = 0,
        running: Sequence[float] = (),
        running_batches: Sequence[int] = (),
        slots: int = 1,
        inflight_express: int = 0,
        app_limited: bool = False,
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.queued = queued
        self.queued_tokens = queued_tokens
        self.inflight = inflight
        self.inflight_tokens = inflight_tokens
        self.inflight_calls = inflight_calls
        self.running = running
        self.running_batches = running_batches
        self.slots = slots
        self.inflight_express = inflight_express
        self.app_limited = app_limited

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return self.queued == 0 and self.inflight == 0 and self.inflight_calls == 0
