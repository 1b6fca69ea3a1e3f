"""The data plane of one process: pools, the listener for clients, reload and drain. Somebody else decides."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import socket
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple

from controller.base import Controller
from proxy.access.keys import Keyring
from proxy.aside import Aside, Overdue
from proxy.clock import Clock, Timer
from proxy.config.certificates import fingerprint, renew, server_context
from proxy.config.difference import keeps_controller, needs_new_pool
from proxy.config.memory import allowed_bytes
from proxy.config.model import Config, PoolConfig
from proxy.config.share import WHOLE, Share
from proxy.control import Control
from proxy.dispatch.pool import Pool
from proxy.http.cors import Cors
from proxy.http.descriptors import let_in
from proxy.http.incoming import Limits
from proxy.http.server import DataServer, ServerLimits
from proxy.observe import logs
from proxy.observe.access_log import AccessLog
from proxy.observe.metrics import Metrics
from proxy.serving.handler import Handler
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable

if TYPE_CHECKING:
    from proxy.observe.tracing import Tracing

__all__ = ["DataPlane", "Prepared", "in_force"]

_LOG = logging.getLogger("trimtab")

_DELAY_EVERY_S = 0.25
_RETIRE_EVERY_S = 0.25
_CUT_S = 0.25
_LAST_SPANS_S = 10.0
"""When everything was cut off, handlers have this long to notice (the server takes 0 for no limit)."""
_RETIRE_AFTER_S = 1.0
"""A request may have chosen its pool and not entered it yet; nothing takes longer over that than this."""


class Prepared(NamedTuple):
    """A configuration that can be put in force at once."""

    config: Config
    pools: dict[str, Pool | None]
    """New pools by name; None where the one in force goes on."""

    def discard(self) -> None:
        """Close what was built for nothing."""
        for pool in self.pools.values():
            if pool is not None:
                pool.close()


def in_force(old: Config, new: Config) -> Config:
    """Return what a reload makes of two configurations: some sections belong to sockets that are open already."""
    return new.model_copy(update={key: getattr(old, key) for key in _FIXED})


class DataPlane:
    """Create it inside a running event loop, give it a bound socket, and it serves until `stop`."""

    def __init__(
        self, config: Config, control: Control, *, clock: Clock, metrics: Metrics, share: Share = WHOLE
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._control = control
        self._clock = clock
        self._metrics = metrics
        self._share = share
        self.config = config
        self._tracing = _tracing(config)
        self._pools = {pool.name: self._build(pool, control.controller(pool)) for pool in config.pools}
        self.lifecycle = Lifecycle()
        self.handler = Handler(
            RouteTable(tuple(self._pools.values())),
            limits=_request_limits(config, share),
            lifecycle=self.lifecycle,
            trust_headers=config.trust_headers,
        )
        if config.listen.plain_probes:
            self.handler.service.answer_plain_probes()
        self.handler.service.ready = lambda: not self.unready()
        self.handler.service.access_log = AccessLog.of(config.log)
        self.handler.service.cors = Cors.of(config.cors)
        self.handler.service.hooks = metrics
        self.handler.service.tracing = self._tracing
        self._follow_keys(config)
        self._tls = None if config.listen.tls is None else server_context(config.listen.tls)
        self.server = DataServer(self.handler, _server_limits(config, share))
        self._ticks: dict[str, Timer] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._delay_timer: asyncio.TimerHandle | None = None
        self._started = False

    @property
    def pools(self) -> Mapping[str, Pool]:
        """Pools by name, in order."""
        return self._pools

    async def start(self, sock: socket.socket) -> None:
        """Begin to serve on a listening socket."""
        await self.server.start_on(sock, tls=self._tls)
        for pool in self._pools.values():
            self._schedule(pool)
            pool.expect_upstreams()
        self._measure_delay(self._loop.time())
        self._started = True

    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when it should."""
        if not self._started:
            return ["starting"]
        if not self.lifecycle.ready:
            return ["draining"]
        now = self._clock.now()
        dead = [
            f"pool {pool.name}: no upstream is available"
            for pool in self._pools.values()
            if not any(endpoint.proven and endpoint.last_resort(now) for endpoint in pool.group.endpoints)
        ]
        return dead if len(dead) == len(self._pools) else []

    # -- time ----------------------------------------------------------------------------------------------

    def _schedule(self, pool: Pool) -> None:
        due = self._clock.now() + pool.config.tick_s
        self._ticks[pool.name] = self._clock.call_at(due, lambda: self._tick(pool))

    def _tick(self, pool: Pool) -> None:
        """Let somebody decide about a pool. A law that fails is logged; serving goes on with the setpoints as is."""
        if self._pools.get(pool.name) is not pool:
            return
        began = perf_counter()
        try:
            self._control.tick(pool, self._clock.now())
        except Exception:
            _LOG.exception("the controller of pool %s failed", pool.name)
        finally:
            self._metrics.ticked(pool.name, perf_counter() - began)
            self._schedule(pool)

    def _measure_delay(self, expected: float) -> None:
        """Notice when the loop is late for its own timer: somebody blocked it, or the CPU is short."""
        now = self._loop.time()
        self._metrics.loop_delayed(now - expected)
        due = now + _DELAY_EVERY_S
        self._delay_timer = self._loop.call_at(due, self._measure_delay, due)

    # -- reload --------------------------------------------------------------------------------------------

    def apply(self, config: Config) -> None:
        """Put `config` in force. Raises ValueError, and keeps the old one, when it cannot be."""
        self.commit(self.prepare(config))

    def prepare(self, config: Config) -> Prepared:
        """Build what `config` needs that is not there yet. Raises ValueError when it cannot be built."""
        for section in (config.listen.tls, config.admin.tls):
            if section is not None:
                server_context(section)
        self._metrics.configure(config.pools)
        pools: dict[str, Pool | None] = {}
        for wanted in config.pools:
            known = self._pools.get(wanted.name)
            same_files = known is not None and known.tls_files == fingerprint(wanted)
            if known is not None and same_files and not needs_new_pool(known.config, wanted):
                pools[wanted.name] = None
                continue
            keep = known is not None and keeps_controller(known.config, wanted)
            controller = known.controller if known is not None and keep else self._control.controller(wanted)
            pools[wanted.name] = self._build(wanted, controller)
        return Prepared(config, pools)

    def commit(self, prepared: Prepared) -> None:
        """Make one swap to what was prepared; pools that are not needed any more retire.

        Requests under way finish on the pools they chose; the socket stays open.
        """
        config = prepared.config
        if self._tls is not None and self.config.listen.tls is not None:
            renew(self._tls, self.config.listen.tls)
        fresh: dict[str, Pool] = {}
        follow: list[tuple[Pool, PoolConfig]] = []
        """Pools whose controller stays, with the configuration it knows."""
        for wanted in config.pools:
            known, built = self._pools.get(wanted.name), prepared.pools[wanted.name]
            pool = fresh[wanted.name] = built or self._pools[wanted.name]
            if known is not None and known.lengths is not None:
                pool.lengths = known.lengths
            if known is not None and pool.controller is known.controller:
                follow.append((pool, known.config))
            pool.config = wanted
        self._swap(fresh)
        for pool, before in follow:
            self._control.follow(pool, before)
            pool.knobs_changed()
        self._follow_keys(config)
        self.config = in_force(self.config, config)
        logs.setup(config.log)
        self.handler.service.access_log = AccessLog.of(config.log)
        self.handler.service.cors = Cors.of(config.cors)

    def _build(self, config: PoolConfig, controller: Controller) -> Pool:
        pool = Pool(config, clock=self._clock, controller=controller, hooks=self._control.hooks, share=self._share)
        pool.runs.tracing = self._tracing
        self._watch(pool)
        return pool

    def _watch(self, pool: Pool) -> None:
        self._metrics.watch(pool.name, pool.promise)

    def _swap(self, fresh: dict[str, Pool]) -> None:
        """Send requests to `fresh` from now on, and let the pools that are not among them retire."""
        old, self._pools = self._pools, fresh
        self.handler.service.table = RouteTable(tuple(fresh.values()))
        known_as = {endpoint.name: endpoint for pool in old.values() for endpoint in pool.group.endpoints}
        for name, pool in fresh.items():
            self._watch(pool)
            before = old.get(name)
            if before is not None and before is not pool:
                pool.succeed(before)
            if before is not pool and self._started:
                self._schedule(pool)
                for endpoint in pool.group.endpoints:
                    endpoint.follow(known_as.get(endpoint.name))
                pool.expect_upstreams()
        for name, pool in old.items():
            if name not in fresh and pool.lengths is not None:
                pool.lengths.close()
            if fresh.get(name) is not pool:
                task = self._loop.create_task(self._retire(pool))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    def _follow_keys(self, config: Config) -> None:
        """Let in whom `config` lets in; what a key has used up stays used up unless its limits changed."""
        service = self.handler.service
        service.keyring = (
            Keyring(
                config.keys, now=monotonic(), forward=config.forward_keys, before=service.keyring, share=self._share
            )
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
        # A pool is full of cycles, and the collector is kept from looking for them often: see `proxy.run`.
        del pool
        self._loop.call_soon(gc.collect)

    # -- going away ----------------------------------------------------------------------------------------

    async def drain(self, *, grace_s: float | None = None, refuse: bool = True) -> bool:
        """Become unready, serve on for the grace, then let requests finish up to the cap; say whether all did.

        After the grace newcomers are refused, unless `refuse` is false.
        """
        config = self.config.drain
        for pool in self._pools.values():
            pool.drain()
        grace_s = config.grace_s if grace_s is None else grace_s
        return await self.lifecycle.drain(grace_s=grace_s, cap_s=config.cap_s, refuse=refuse)

    async def stop(self) -> None:
        """Close everything now. Safe to call at any time, also more than once."""
        self._started = False
        self.lifecycle.cut = True
        for timer in self._ticks.values():
            timer.cancel()
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        for task in tuple(self._retiring):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for pool in self._pools.values():
            if pool.lengths is not None:
                pool.lengths.close()
            pool.abort()
        await self.server.stop(patience_s=_CUT_S)
        if self._tracing is not None:
            try:
                await Aside("sending the last spans", _LAST_SPANS_S).run(self._tracing.close)
            except Overdue as error:
                _LOG.warning("%s: they are lost", error)


def _tracing(config: Config) -> Tracing | None:
    """Return who follows requests; None, without importing anything, where nobody shall."""
    if not config.tracing.enabled:
        return None
    from proxy.observe.tracing import Tracing, exporter_for

    return Tracing(config.tracing, exporter_for(config.tracing))


def _request_limits(config: Config, share: Share) -> Limits:
    limits = config.limits
    held = limits.max_held_bytes
    return Limits(
        max_body_bytes=limits.max_body_bytes,
        max_header_bytes=limits.max_header_bytes,
        body_timeout_s=limits.body_timeout_s,
        min_rate_bytes=limits.min_rate_bytes,
        max_held_bytes=share.part(allowed_bytes() // 4 if held is None else held),
        max_json_values=limits.max_json_values,
    )


def _server_limits(config: Config, share: Share) -> ServerLimits:
    limits = config.limits
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ServerLimits(
        max_header_line_bytes=limits.max_header_line_bytes,
        max_headers=limits.max_headers,
        max_connections=min(share.part(limits.max_connections), let_in(config, open_files)),
        keepalive_timeout_s=limits.keepalive_timeout_s,
        head_timeout_s=limits.head_timeout_s,
        answer_timeout_s=limits.answer_timeout_s,
        min_rate_bytes=limits.min_rate_bytes,
    )


_FIXED = ("listen", "admin", "limits", "trust_headers", "state", "tracing", "workers")
"""What a reload does not change."""
