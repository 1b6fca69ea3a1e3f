"""The whole proxy in one process: data plane, controllers and admin API in one object."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import cast

from controller.loop import PoolController
from proxy.admin.steering import Steering
from proxy.clock import Clock
from proxy.config.certificates import renew
from proxy.config.model import Config, PoolConfig
from proxy.dispatch.lengths import kept_predictors
from proxy.dispatch.pool import Pool
from proxy.observe.gauges import PoolGauges
from proxy.observe.hooks import Hooks
from proxy.observe.predictor_gauges import PredictorMetrics
from proxy.plane import DataPlane
from proxy.pool_view import PoolView
from proxy.serving.lifecycle import Lifecycle

__all__ = ["Proxy"]


class Proxy(Steering):
    """Create it inside a running event loop, give it two bound sockets, and it serves until `stop`.

    `reread` returns the configuration afresh, for reloads; without it a reload changes nothing.
    """

    def __init__(
        self, config: Config, *, reread: Callable[[], Config] | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(config, reread=reread or (lambda: self.config), clock=clock)
        self.plane = DataPlane(config, self, clock=self.clock, metrics=self.metrics)
        self.metrics.registry.register(PoolGauges(lambda: self.pools.values(), self.clock.now))
        self.metrics.registry.register(PredictorMetrics(lambda: self.pools.values()))
        self.keeper.keep_predictors(lambda: kept_predictors(self.plane.pools.values()))

    @property
    def pools(self) -> Mapping[str, PoolView]:
        """Pools by name, in order."""
        return cast("Mapping[str, PoolView]", self.plane.pools)  # each has a controller that was made here

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.plane.config

    @property
    def lifecycle(self) -> Lifecycle:
        """The stage of life."""
        return self.plane.lifecycle

    async def start(self, data: socket.socket, admin: socket.socket) -> None:
        """Begin to serve on two listening sockets."""
        await self.plane.start(data)
        await self.open(admin)

    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when it should."""
        return self.plane.unready()

    # -- what the data plane asks: `proxy.control.Control` ---------------------------------------------------

    @property
    def hooks(self) -> Hooks:
        """Who counts what happens."""
        return self.traffic

    def controller(self, config: PoolConfig) -> PoolController:
        """Return a controller for a pool that is new."""
        return self.resumed(config)

    def tick(self, pool: Pool, now: float) -> None:
        """Let one pool's controllers decide."""
        for decision in pool.tick(now):
            self.note(decision)

    def follow(self, pool: Pool, before: PoolConfig) -> None:
        """Let a controller that stays take over what changed in the file."""
        self.follow_file(self.pools[pool.name], before)

    # -- reload and end --------------------------------------------------------------------------------------

    async def apply(self, config: Config) -> None:
        """Put a configuration in force. Requests under way finish on the pools they chose; sockets stay open."""
        if self.admin.tls is not None and self.config.admin.tls is not None:
            renew(self.admin.tls, self.config.admin.tls)
        self.plane.apply(config)

    async def drain(self, *, grace_s: float | None = None) -> bool:
        """Become unready, serve on for the grace, then let requests finish up to the cap; say whether all did."""
        return await self.plane.drain(grace_s=grace_s)

    async def stop(self) -> None:
        """Close everything now. Safe to call at any time, also more than once."""
        await self.keeper.stop()
        await self.plane.stop()
        await self.shut()
