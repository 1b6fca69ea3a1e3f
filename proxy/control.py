"""Who decides over the knobs of a data plane: the process itself, or a leader that several processes share."""

from __future__ import annotations

from typing import Protocol

from controller.base import Controller
from proxy.config.model import PoolConfig
from proxy.dispatch.pool import Pool
from proxy.observe.hooks import Hooks

__all__ = ["Control"]


class Control(Protocol):
    """What a data plane asks of whoever decides.

    In a single process that is `proxy.app.Proxy`, whose answers are plain calls. With several workers it is
    `proxy.workers.worker.Worker`, which passes on what the leader decided last, so that no request waits for it.
    """

    @property
    def hooks(self) -> Hooks:
        """Who counts what happens."""
        ...

    def controller(self, config: PoolConfig) -> Controller:
        """Return the controller of a pool that is new."""
        ...

    def tick(self, pool: Pool, now: float) -> None:
        """Let whoever decides look at `pool`; called once in its `tick_s`."""
        ...

    def follow(self, pool: Pool, before: PoolConfig) -> None:
        """Take over what changed in the configuration of a pool whose controller stays."""
        ...
