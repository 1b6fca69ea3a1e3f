"""A worker: a data plane that takes its setpoints from the leader, and tells it what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from controller.observation import Observation
from controller.shared import Follower
from proxy.clock import LoopClock
from proxy.config.model import Config, PoolConfig
from proxy.config.rules import controller_for
from proxy.config.share import Share
from proxy.dispatch.pool import Pool
from proxy.observe import logs
from proxy.observe.hooks import Hooks, PassingHooks
from proxy.observe.metrics import Metrics
from proxy.plane import DataPlane, Prepared
from proxy.process.watchdog import Watchdog
from proxy.workers.protocol import Channel, ProtocolError
from proxy.workers.rows import observation_of, row_of

__all__ = ["Outbox", "Worker"]

_LOG = logging.getLogger("trimtab.worker")
REPORT_S = 0.1
"""How often the leader hears of a worker."""
DUMP_EVERY = 5
"""Every how many reports the counters go along, so that little is lost with a worker that is killed."""
ORPHAN_S = 30.0
"""For so long a worker whose leader is gone goes on serving, for others to take the port over."""
_LAST_REQUESTS_S = 1.0
"""For so long at least a worker that accepts no connection any more waits for requests of those it has."""
_SEEK_S = 0.25
"""For so long at most the leader is asked for what is not known here."""
_MOST_ROWS = 10_000


class Outbox(PassingHooks):
    """Stands between the core and the metrics, and keeps what the leader has not heard of yet."""

    def __init__(self, next_hooks: Hooks) -> None:
        super().__init__(next_hooks)
        self._rows: list[Observation] = []
        self.dropped = 0
        """Requests that were counted, but about which the leader's controllers will not hear."""

    def remember(self, obs: Observation) -> None:
        """Keep one finished request for the leader."""
        if len(self._rows) < _MOST_ROWS:
            self._rows.append(obs)
        else:
            self.dropped += 1

    def take(self) -> list[Any]:
        """Return what was kept since the last time, as rows."""
        rows, self._rows = self._rows, []
        return [row_of(obs) for obs in rows]


class Worker:
    """Implements `proxy.control.Control` by what the leader said last. `welcome` is the leader's first message."""

    def __init__(self, channel: Channel, welcome: Mapping[str, Any]) -> None:
        config = Config.model_validate(welcome["config"])
        logs.setup(config.log)
        self._channel = channel
        self._clock = LoopClock(asyncio.get_running_loop())
        self._share = Share(*welcome["share"])
        self._orders: dict[str, Any] = welcome["orders"]
        self._lessons: dict[str, Any] = welcome["lessons"]
        self._metrics = Metrics(config.pools)
        self._outbox = Outbox(self._metrics)
        self._prepared: Prepared | None = None
        self._draining: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._questions = 0
        self._sought: dict[int, asyncio.Future[None]] = {}
        """Questions to the leader that are not answered."""
        self._cut = False
        """Whether the leader is gone."""
        self.plane = DataPlane(config, self, clock=self._clock, metrics=self._metrics, share=self._share)
        self._keep_out(self._orders)
        self._on_kept(welcome)
        self._share_kept()

    # -- what the data plane asks: `proxy.control.Control` ---------------------------------------------------

    @property
    def hooks(self) -> Hooks:
        """Who counts what happens."""
        return self._outbox

    def controller(self, config: PoolConfig) -> Follower:
        """Return a follower that knows what the leader told and has learned from what others saw."""
        now = self._clock.now()
        follower = controller_for(config, now, Follower)
        part, given = self._orders[config.name]
        follower.adopt(given, part, now)
        for row in self._lessons.pop(config.name, ()):
            obs = observation_of(row)
            if follower.mode == "gate":
                obs.batch = max(1, round(obs.batch / self._share.of))
            follower.observe(obs)
        return follower

    def tick(self, pool: Pool, now: float) -> None:
        """Keep the models of a pool in time."""
        pool.tick(now)

    def follow(self, pool: Pool, before: PoolConfig) -> None:
        """Nothing: the leader follows the file, and its orders come right after."""

    # -- life --------------------------------------------------------------------------------------------------

    async def run(self, sock: socket.socket) -> None:
        """Serve on a listening socket until the leader, or SIGTERM, ends it."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._recycle)
        for ignored in (signal.SIGINT, signal.SIGHUP):
            # What they mean is for the leader to say.
            signal.signal(ignored, signal.SIG_IGN)
        tasks = [loop.create_task(self._listen()), loop.create_task(self._report())]
        watchdog = Watchdog()
        try:
            await self.plane.start(sock)
            watchdog.start()
            self._channel.send({"type": "ready"})
            await self._over.wait()
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await self.plane.stop()
            watchdog.stop()
            self._channel.send(self._news(last=True))
            await self._channel.flush()
            self._channel.close()

    def _recycle(self) -> None:
        """Somebody wants this process to be replaced: who is connected is served, the others serve newcomers."""
        self.plane.server.stop_listening()
        self._drain(_LAST_REQUESTS_S, refuse=False)

    def _drain(self, grace_s: float, *, refuse: bool) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._wind_down(grace_s, refuse))

    async def _wind_down(self, grace_s: float, refuse: bool) -> None:
        await self.plane.drain(grace_s=grace_s, refuse=refuse)
        self._over.set()

    # -- what the leader says ----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._channel.receive()
            except ProtocolError:
                _LOG.exception("the leader cannot be understood")
                message = None
            if message is None:
                break
            getattr(self, f"_on_{message['type']}")(message)
        self._cut = True
        _LOG.error("the leader is gone: serving on with the last setpoints for %g s, then draining", ORPHAN_S)
        await asyncio.sleep(ORPHAN_S)
        self._recycle()

    def _on_orders(self, message: Mapping[str, Any]) -> None:
        """Take over what was decided, all of it before anything else runs."""
        now = self._clock.now()
        self._orders.update(message["orders"])
        for name, (part, given) in message["orders"].items():
            pool = self.plane.pools.get(name)
            if pool is not None and isinstance(pool.controller, Follower):
                pool.controller.adopt(given, part, now)
                self._metrics.slo_changed(name, pool.controller.slo)
        self._keep_out(message["orders"])
        for name in message["orders"]:
            if name in self.plane.pools:
                self.plane.pools[name].knobs_changed()

    def _keep_out(self, orders: Mapping[str, Any]) -> None:
        """Send nothing new to the upstreams that an operator has taken out."""
        for name, (_, given) in orders.items():
            if name in self.plane.pools:
                self.plane.pools[name].keep_out(given.get("taken_out", ()))

    def _on_kept(self, message: Mapping[str, Any]) -> None:
        """Remember which upstreams keep what, as others have learned."""
        for name, rows in message["kept"].items():
            pool = self.plane.pools.get(name)
            if pool is not None and pool.keepers is not None:
                pool.keepers.hear(rows)

    def _share_kept(self) -> None:
        """Tell the leader what is learned here before its caller hears of it: the next request may go elsewhere."""
        for name, pool in self.plane.pools.items():
            if pool.keepers is not None:
                pool.keepers.on_news = self._tell_kept
                pool.keepers.seek = partial(self._seek, name)

    def _tell_kept(self) -> None:
        if self._cut or self._channel.congested:
            return  # what is untold is bounded, and goes along with a later report
        kept = {}
        for name, pool in self.plane.pools.items():
            if pool.keepers is not None and (rows := pool.keepers.take()):
                kept[name] = rows
        if kept:
            self._channel.send({"type": "kept", "kept": kept})

    async def _seek(self, pool: str, digests: list[str]) -> None:
        """Ask the leader who keeps what is not known here. It may not know either, or not answer in time."""
        if self._cut or self._channel.congested:
            return
        self._questions += 1
        number = self._questions
        answer = self._sought[number] = asyncio.get_running_loop().create_future()
        self._channel.send({"type": "seek", "id": number, "pool": pool, "ids": digests})
        try:
            await asyncio.wait((answer,), timeout=_SEEK_S)
        finally:
            del self._sought[number]

    def _on_sought(self, message: Mapping[str, Any]) -> None:
        self._on_kept(message)
        answer = self._sought.get(message["id"])
        if answer is not None and not answer.done():
            answer.set_result(None)

    def _on_scrape(self, message: Mapping[str, Any]) -> None:
        """Tell everything, then that it was told."""
        self._channel.send(self._news(with_dump=True))
        self._channel.send({"type": "answer", "id": message["id"]})

    def _on_prepare(self, message: Mapping[str, Any]) -> None:
        """Make a new configuration ready, or say why that cannot be."""
        self._discard()
        self._orders.update(message["orders"])
        error = None
        try:
            self._prepared = self.plane.prepare(Config.model_validate(message["config"]))
        except ValueError as problem:
            error = str(problem)
        self._channel.send({"type": "answer", "id": message["id"], "error": error})

    def _on_commit(self, message: Mapping[str, Any]) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self.plane.commit(prepared)
            self._keep_out(self._orders)
            self._share_kept()

    def _on_discard(self, message: Mapping[str, Any]) -> None:
        self._discard()

    def _on_drain(self, message: Mapping[str, Any]) -> None:
        self._drain(message["grace_s"], refuse=True)

    def _on_stop(self, message: Mapping[str, Any]) -> None:
        self._over.set()

    def _discard(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.discard()

    # -- what the leader hears -----------------------------------------------------------------------------------

    async def _report(self) -> None:
        count = 0
        while True:
            await asyncio.sleep(REPORT_S)
            if self._cut or self._channel.congested:
                continue  # what is kept is bounded, and counters lose nothing
            count += 1
            self._tell_kept()
            self._channel.send(self._news(with_dump=count % DUMP_EVERY == 0))

    def _news(self, *, with_dump: bool = False, last: bool = False) -> dict[str, Any]:
        now = self._clock.now()
        pools = {
            name: {
                "load": asdict(pool.load(now)),
                "own_load": asdict(pool.own_load(now)),
                "stats": pool.stats(),
                "arrivals": pool.controller.take_arrivals(),
                "said": [pool.said.popleft() for _ in range(len(pool.said))],
            }
            for name, pool in self.plane.pools.items()
            if isinstance(pool.controller, Follower)
        }
        news: dict[str, Any] = {
            "type": "bye" if last else "news",
            "pools": pools,
            "observations": self._outbox.take(),
            "dropped": self._outbox.dropped,
            "unready": self.plane.unready(),
            "inside": self.plane.lifecycle.inside,
        }
        if with_dump or last:
            news["dump"] = self._metrics.dump()
        return news


async def main(line: int, listening: int) -> None:
    """Be a worker that speaks with its leader over one inherited descriptor and with clients over another."""
    channel = await Channel.on(socket.socket(fileno=line))
    welcome = await channel.receive()
    if welcome is None:
        return
    sock = socket.socket(fileno=listening)
    sock.setblocking(False)
    worker = Worker(channel, welcome)
    await worker.run(sock)
