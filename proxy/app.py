"""The whole proxy in one object: pools, data server, admin server, control ticks, reload and drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from controller.decision import Decision
from controller.loop import PoolController
from controller.observation import Observation
from proxy import logs
from proxy.access_log import AccessLog
from proxy.admin.expiry import Expiry
from proxy.admin.operator import PoolView, Reloaded
from proxy.admin.server import AdminServer
from proxy.clock import Clock, LoopClock, Timer
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import Config, PoolConfig
from proxy.gauges import PoolGauges
from proxy.handler import Handler
from proxy.incoming import Limits
from proxy.keeper import Keeper
from proxy.keys import Keyring
from proxy.lifecycle import Lifecycle
from proxy.matching import RouteTable
from proxy.metrics import Metrics
from proxy.pool import Pool, controller_for
from proxy.reload import compare, keeps_controller, needs_new_pool
from proxy.server import DataServer, ServerLimits
from proxy.state import restore, restored_config
from proxy.tls import fingerprint, renew, server_context
from proxy.traffic import Traffic

__all__ = ["Proxy"]

_LOG = logging.getLogger("trimtab")
_DECISIONS = logging.getLogger("trimtab.decisions")

_DELAY_EVERY_S = 0.25
_RETIRE_EVERY_S = 0.25
_CUT_S = 0.25
"""When everything was cut off, handlers have this long to notice (the server takes 0 for no limit)."""
_RETIRE_AFTER_S = 1.0
"""A request may have chosen its pool and not entered it yet; nothing takes longer over that than this."""


class Proxy:
    """Create it inside a running event loop, give it two bound sockets, and it serves until `stop`.

    `reread` returns the configuration afresh, for reloads; without it a reload changes nothing.
    """

    def __init__(
        self, config: Config, *, reread: Callable[[], Config] | None = None, clock: Clock | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.clock: Clock = clock or LoopClock(self._loop)
        self.config = config
        self.generation = 1
        self.metrics = Metrics(config.pools)
        self._reread = reread or (lambda: self.config)
        self._reloading = asyncio.Lock()
        self.traffic = Traffic(self.metrics)
        self._pools: dict[str, Pool] = {}
        self.keeper = Keeper(config.state, self.traffic, lambda: self._pools.values(), self.clock)
        self._pools = {pool.name: self._resume(pool) for pool in config.pools}
        self.metrics.registry.register(PoolGauges(lambda: self._pools.values(), self.clock.now))
        self.lifecycle = Lifecycle()
        self.handler = Handler(
            RouteTable(tuple(self._pools.values())),
            limits=_request_limits(config),
            lifecycle=self.lifecycle,
            trust_headers=config.trust_headers,
        )
        self.handler.service.ready = lambda: not self.unready()
        self.handler.service.access_log = AccessLog.of(config.log)
        self._follow_keys(config)
        self._tls = None if config.listen.tls is None else server_context(config.listen.tls)
        self.data = DataServer(self.handler, _server_limits(config))
        self.expiry = Expiry(self.clock, lambda: self._pools, self.decided)
        self.admin = AdminServer(self, config.admin)
        self._ticks: dict[str, Timer] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._delay_timer: asyncio.TimerHandle | None = None
        self._started = False

    @property
    def pools(self) -> Mapping[str, Pool]:
        """Pools by name, in order."""
        return self._pools

    async def start(self, data: socket.socket, admin: socket.socket) -> None:
        """Begin to serve on two listening sockets."""
        await self.admin.start(admin)
        await self.data.start_on(data, tls=self._tls)
        for pool in self._pools.values():
            self._schedule(pool)
            pool.expect_upstreams()
        self._measure_delay(self._loop.time())
        self.keeper.start()
        self._started = True

    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when it should."""
        if not self._started:
            return ["starting"]
        if not self.lifecycle.ready:
            return ["draining"]
        now = self.clock.now()
        dead = [
            f"pool {pool.name}: no upstream is available"
            for pool in self._pools.values()
            if not any(endpoint.proven and endpoint.last_resort(now) for endpoint in pool.group.endpoints)
        ]
        return dead if len(dead) == len(self._pools) else []

    # -- control -------------------------------------------------------------------------------------------

    def _build(self, config: PoolConfig, controller: PoolController | None = None) -> Pool:
        pool = Pool(config, clock=self.clock, controller=controller, hooks=self.traffic)
        self._watch(pool)
        return pool

    def _resume(self, config: PoolConfig) -> Pool:
        """Build a pool whose controller goes on where the last run's stopped, if that was kept."""
        saved, now = self.keeper.saved(config.name), self.clock.now()
        controller = controller_for(restored_config(config, saved), now)
        shown = restore(config, controller, saved, now, time.time())
        if shown:
            _LOG.info("pool %s goes on where it stopped, with %d requests to learn from", config.name, shown)
        return self._build(config, controller)

    def _watch(self, pool: Pool) -> None:
        self.metrics.watch(pool.name, lambda: pool.controller.slo)

    def _schedule(self, pool: Pool) -> None:
        due = self.clock.now() + pool.config.tick_s
        self._ticks[pool.name] = self.clock.call_at(due, lambda: self._tick(pool))

    def _tick(self, pool: Pool) -> None:
        """Let one pool's controller decide. A law that fails is logged; serving goes on with the setpoints as is."""
        if self._pools.get(pool.name) is not pool:
            return
        try:
            decision = pool.tick(self.clock.now())
            if decision is not None:
                self._note(decision)
        except Exception:
            _LOG.exception("the controller of pool %s failed", pool.name)
        finally:
            self._schedule(pool)

    def decided(self, pool: PoolView, decision: Decision) -> None:
        """Act on a decision an operator made: count it, and let through whoever can go now."""
        self.metrics.decided(pool.name, decision.rule)
        self.metrics.slo_changed(pool.name, pool.controller.slo)
        self.keeper.note(decision)
        pool.knobs_changed()

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of a pool, oldest first."""
        return self.traffic.recent(pool)

    async def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest decisions of operators, newest first."""
        return await self.keeper.audit(limit)

    def _note(self, decision: Decision) -> None:
        self.metrics.decided(decision.pool, decision.rule)
        if decision.actor.startswith("admin:"):
            self.keeper.note(decision)
        _DECISIONS.info(
            "pool %s: %s", decision.pool, decision.text,
            extra={"decision": decision.id, "rule": decision.rule, "old": decision.old, "new": decision.new},
        )  # fmt: skip

    def _measure_delay(self, expected: float) -> None:
        """Notice when the loop is late for its own timer: somebody blocked it, or the CPU is short."""
        now = self._loop.time()
        self.metrics.loop_delayed(now - expected)
        due = now + _DELAY_EVERY_S
        self._delay_timer = self._loop.call_at(due, self._measure_delay, due)

    # -- reload --------------------------------------------------------------------------------------------

    async def reload(self) -> Reloaded:
        """Read the configuration again. Raises ConfigError, and keeps the old one, when it is not valid.

        Requests under way finish on the pools they chose; sockets stay open.
        """
        async with self._reloading:
            try:
                config = await asyncio.to_thread(self._reread)
                difference = compare(self.config, config)
                self._apply(config)
            except ConfigError:
                self.metrics.reloaded(ok=False)
                raise
            except ValueError as error:
                self.metrics.reloaded(ok=False)
                raise ConfigError([Problem("", "", str(error))]) from error
            self.metrics.reloaded(ok=True)
            return Reloaded(self.generation, difference.changed, difference.restart_required)

    def _apply(self, config: Config) -> None:
        """Put `config` in force: new pools first, then one swap, then the old ones retire."""
        for context, section in ((self._tls, self.config.listen.tls), (self.admin.tls, self.config.admin.tls)):
            if context is not None and section is not None:
                renew(context, section)
        self.metrics.configure(config.pools)
        fresh: dict[str, Pool] = {}
        follow: list[tuple[Pool, PoolConfig]] = []
        """Pools whose controller stays, with the configuration it knows."""
        for wanted in config.pools:
            known = self._pools.get(wanted.name)
            same_files = known is not None and known.tls_files == fingerprint(wanted)
            if known is not None and same_files and not needs_new_pool(known.config, wanted):
                follow.append((known, known.config))
                known.config = wanted
                fresh[wanted.name] = known
                continue
            keep = known is not None and keeps_controller(known.config, wanted)
            fresh[wanted.name] = self._build(wanted, known.controller if known is not None and keep else None)
            if known is not None and keep:
                follow.append((fresh[wanted.name], known.config))
        old, self._pools = self._pools, fresh
        self.handler.table = RouteTable(tuple(fresh.values()))
        for pool, before in follow:
            self._follow(pool, before)
        well = {endpoint.name for pool in old.values() for endpoint in pool.group.endpoints if endpoint.proven}
        for name, pool in fresh.items():
            self._watch(pool)
            if old.get(name) is not pool and self._started:
                self._schedule(pool)
                for endpoint in pool.group.endpoints:
                    endpoint.proven = endpoint.name in well
                pool.expect_upstreams()
        for name, pool in old.items():
            if fresh.get(name) is not pool:
                task = self._loop.create_task(self._retire(pool))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        self._follow_keys(config)
        self.config = config.model_copy(update={key: getattr(self.config, key) for key in _FIXED})
        self.generation += 1
        logs.setup(config.log)
        self.handler.service.access_log = AccessLog.of(config.log)

    def _follow(self, pool: Pool, before: PoolConfig) -> None:
        """Let a controller take over what changed in the file; what operators set meanwhile stays otherwise."""
        wanted, now, actor = pool.config, self.clock.now(), "admin:reload"
        if before.slo != wanted.slo:
            self._note(pool.controller.set_slo(wanted.to_slo(), now, actor))
        promised = wanted.to_class_slos()
        if before.to_class_slos() != promised:
            for klass in wanted.classes:
                slo = promised.get(klass, pool.controller.slo)
                if pool.controller.slo_of(klass) != slo:
                    self._note(pool.controller.set_slo(slo, now, actor, klass))
        if (before.law, before.law_options) != (wanted.law, wanted.law_options):
            self._note(pool.controller.set_law(wanted.law, wanted.law_options, now, actor))
        pool.knobs_changed()

    def _follow_keys(self, config: Config) -> None:
        """Let in whom `config` lets in; what a key has used up stays used up unless its limits changed."""
        service = self.handler.service
        service.keyring = (
            Keyring(config.keys, now=monotonic(), forward=config.forward_keys, before=service.keyring)
            if config.keys
            else None
        )

    async def _retire(self, pool: Pool) -> None:
        """Let a replaced pool finish what it has, then close it."""
        await asyncio.sleep(_RETIRE_AFTER_S)
        pool.drain()
        while pool.busy:  # noqa: ASYNC110 - a pool tells nobody when its last request has left
            await asyncio.sleep(_RETIRE_EVERY_S)
        pool.close()

    # -- going away ----------------------------------------------------------------------------------------

    async def drain(self, *, grace_s: float | None = None) -> bool:
        """Become unready, serve on for the grace, then let requests finish up to the cap; say whether all did."""
        config = self.config.drain
        for pool in self._pools.values():
            pool.drain()
        grace_s = config.grace_s if grace_s is None else grace_s
        return await self.lifecycle.drain(grace_s=grace_s, cap_s=config.cap_s)

    async def stop(self) -> None:
        """Close everything now. Safe to call at any time, also more than once."""
        self._started = False
        await self.keeper.stop()
        self.expiry.stop()
        for timer in self._ticks.values():
            timer.cancel()
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        for task in tuple(self._retiring):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for pool in self._pools.values():
            pool.abort()
        await self.data.stop(patience_s=_CUT_S)
        await self.admin.stop()


def _request_limits(config: Config) -> Limits:
    limits = config.limits
    return Limits(
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        body_timeout_s=limits.body_timeout_s,
    )


def _server_limits(config: Config) -> ServerLimits:
    limits = config.limits
    return ServerLimits(
        max_header_line_bytes=limits.max_header_line_bytes,
        max_headers=limits.max_headers,
        max_connections=limits.max_connections,
        keepalive_timeout_s=limits.keepalive_timeout_s,
    )


_FIXED = ("listen", "admin", "limits", "trust_headers", "state")
"""What a reload does not change."""
