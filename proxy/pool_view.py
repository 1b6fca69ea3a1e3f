"""What whoever looks on may see of a pool: operators, gauges, and what is kept over a restart."""

from __future__ import annotations

from typing import Any, Protocol

from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from proxy.config.model import PoolConfig

__all__ = ["PoolView"]


class PoolView(Protocol):
    """A pool as operators see it."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def config(self) -> PoolConfig:
        """The snapshot it runs on."""
        ...

    @property
    def controller(self) -> PoolController:
        """What turns its knobs."""
        ...

    def load(self, now: float) -> Load:
        """Return its queue and calls in flight."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return its state in detail, JSON-ready."""
        ...

    def knobs_changed(self) -> None:
        """Act on knobs that were turned from outside."""
        ...

    @property
    def taken_out(self) -> tuple[str, ...]:
        """URLs of upstreams that an operator has taken out."""
        ...

    def take_out(self, url: str, out: bool, now: float, actor: str) -> Decision:
        """Let an upstream have nothing new and finish what it has, or take it back in. Raises ValueError."""
        ...
