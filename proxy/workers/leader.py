"""The leader: one controller a pool over what all workers see, and one admin API for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from controller.shared import Leader as LeadController
from proxy.admin.steering import Steering
from proxy.clock import Clock, Timer
from proxy.config.certificates import renew
from proxy.config.difference import keeps_controller
from proxy.config.model import Config
from proxy.config.show import revealed
from proxy.observe import logs
from proxy.observe.gauges import PoolGauges
from proxy.observe.metrics import Dump
from proxy.observe.predictor_gauges import PredictorMetrics
from proxy.plane import in_force
from proxy.workers.gauges import WorkerGauges
from proxy.workers.member import Member
from proxy.workers.pools import LedPool
from proxy.workers.protocol import Channel, ProtocolError
from proxy.workers.rows import observation_of, row_of

__all__ = ["Leader"]

_LOG = logging.getLogger("trimtab")
_PATIENCE_S = 1.0
"""A worker that has not answered a scrape by then is shown as it was a moment ago."""
_RELOAD_S = 30.0
_SETTLE_S = 0.001


class Leader(Steering):
    """Implements `proxy.admin.operator.Operator` over workers that a supervisor brings and buries."""

    def __init__(self, config: Config, *, reread: Callable[[], Config], clock: Clock | None = None) -> None:
        super().__init__(config, reread=reread, clock=clock)
        self._config = config
        self._members: dict[int, Member] = {}
        self._buried: Dump = {}
        """What workers counted that are gone; counters never go back."""
        self.restarts = 0
        self._questions = 0
        self._readers: set[asyncio.Task[None]] = set()
        self._ticks: dict[str, Timer] = {}
        self.draining = False
        self._pools = {
            pool.name: LedPool(pool, self.resumed(pool, LeadController), self._tell) for pool in config.pools
        }
        for pool in self._pools.values():
            self._watch(pool)
            self._schedule(pool)
        self.metrics.registry.register(PoolGauges(lambda: self._pools.values(), self.clock.now))
        self.metrics.registry.register(PredictorMetrics(lambda: self._pools.values()))
        self.metrics.registry.register(WorkerGauges(self))

    @property
    def pools(self) -> Mapping[str, LedPool]:
        """Pools by name, in order."""
        return self._pools

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self._config

    @property
    def members(self) -> Mapping[int, Member]:
        """The workers there are, by number."""
        return self._members

    @property
    def inside(self) -> int:
        """Requests under way, as last reported."""
        return sum(member.inside for member in self._members.values())

    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when some worker takes it."""
        if self.draining:
            return ["draining"]
        reasons = [member.unready for member in self._members.values()]
        if not reasons:
            return ["no worker is running"]
        return [] if any(not why for why in reasons) else reasons[0]

    # -- workers come and go -------------------------------------------------------------------------------

    def join(self, number: int, pid: int, channel: Channel) -> Member:
        """Begin to lead a worker: it is told everything, and shown what the others saw."""
        member = self._members[number] = Member(number, pid, channel)
        channel.send(
            {
                "type": "welcome",
                "config": revealed(self._config),
                "share": [number, self._config.workers],
                "orders": {pool.name: self._orders(pool, number) for pool in self._pools.values()},
                "kept": {name: pool.keepers.rows() for name, pool in self._pools.items()},
                "lessons": {name: [row_of(obs) for obs in self.recent(name)] for name in self._pools},
            }
        )
        task = asyncio.get_running_loop().create_task(self._listen(member))
        self._readers.add(task)
        task.add_done_callback(self._readers.discard)
        return member

    async def _listen(self, member: Member) -> None:
        try:
            while (message := await member.channel.receive()) is not None:
                self._heard(member, message)
        except ProtocolError:
            _LOG.exception("worker %d cannot be understood", member.number)
        finally:
            self._bury(member)

    def _heard(self, member: Member, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        member.heard += 1
        if kind == "ready":
            member.ready.set()
        elif kind == "answer":
            waiting = member.answers.pop(message["id"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(dict(message))
        elif kind == "kept":
            self._pass_on(member, message)
        elif kind == "seek":
            # What another one has told before this was asked may not have been read yet.
            asyncio.get_running_loop().call_later(_SETTLE_S, self._found, member, message)
        else:
            self._learn(member, message)

    def _pass_on(self, member: Member, message: Mapping[str, Any]) -> None:
        """Remember which upstreams keep what, as one worker has learned, and tell the others."""
        for name, rows in message["kept"].items():
            if name in self._pools:
                self._pools[name].keepers.hear(rows)
        for other in self._members.values():
            if other is not member and not other.channel.congested:
                other.channel.send({"type": "kept", "kept": message["kept"]})

    def _found(self, member: Member, message: Mapping[str, Any]) -> None:
        """Say which upstreams keep what a worker asked for, as far as any has told."""
        pool = self._pools.get(message["pool"])
        kept = {} if pool is None else {pool.name: pool.keepers.among(message["ids"])}
        member.channel.send({"type": "sought", "id": message["id"], "kept": kept})

    def _learn(self, member: Member, news: Mapping[str, Any]) -> None:
        """Take in what a worker reports; call `bye` its last."""
        member.unready, member.inside, member.dropped = news["unready"], news["inside"], news["dropped"]
        member.dump = news.get("dump", member.dump)
        for row in news["observations"]:
            obs = observation_of(row)
            pool = self._pools.get(obs.pool)
            if pool is not None:
                self.traffic.remember(pool.observed(member.number, obs))
        for name, report in news["pools"].items():
            pool = self._pools.get(name)
            if pool is not None:
                pool.reported(member.number, report)
                self._tell(pool)

    def _bury(self, member: Member) -> None:
        """Keep what a worker counted, and share what it had among the others."""
        member.channel.close()
        if self._members.get(member.number) is member:
            del self._members[member.number]
        self._buried = self.metrics.sum([self._buried, member.dump])
        for waiting in member.answers.values():
            if not waiting.done():
                waiting.set_result({})
        for pool in self._pools.values():
            pool.lost(member.number)
            self._tell(pool)
        member.gone.set()

    # -- deciding --------------------------------------------------------------------------------------------

    def _watch(self, pool: LedPool) -> None:
        self.metrics.watch(pool.name, lambda: pool.controller.slo)

    def _schedule(self, pool: LedPool) -> None:
        due = self.clock.now() + pool.config.tick_s
        self._ticks[pool.name] = self.clock.call_at(due, lambda: self._tick(pool))

    def _tick(self, pool: LedPool) -> None:
        if self._pools.get(pool.name) is not pool:
            return
        try:
            decision = pool.tick(self.clock.now())
            if decision is not None:
                self.note(decision)
            self._tell(pool)
        except Exception:
            _LOG.exception("the controller of pool %s failed", pool.name)
        finally:
            self._schedule(pool)

    def _orders(self, pool: LedPool, number: int) -> tuple[int, dict[str, Any]]:
        part = pool.parts({*self._members, number})[number]
        told = pool.told[number] = (part, pool.orders())
        return told

    def _tell(self, pool: LedPool) -> None:
        """Send everybody what is new to them: one message each, so that all of a change arrives at once."""
        parts, given = pool.parts(self._members), pool.orders()
        for number, member in self._members.items():
            told = (parts[number], given)
            if pool.told.get(number) != told:
                pool.told[number] = told
                member.channel.send({"type": "orders", "orders": {pool.name: told}})

    # -- asking ----------------------------------------------------------------------------------------------

    async def _ask(self, message: dict[str, Any], patience_s: float) -> dict[int, dict[str, Any]]:
        """Ask everybody the same; return the answers in time, by worker. One that dies meanwhile answers {}."""
        self._questions += 1
        loop, number = asyncio.get_running_loop(), self._questions
        waiting = {}
        for member in self._members.values():
            waiting[member] = member.answers[number] = loop.create_future()
            member.channel.send({**message, "id": number})
        if waiting:
            await asyncio.wait(waiting.values(), timeout=patience_s)
        for member in waiting:
            member.answers.pop(number, None)
        return {member.number: future.result() for member, future in waiting.items() if future.done()}

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all workers, dead ones included, as one."""
        await self._ask({"type": "scrape"}, _PATIENCE_S)
        dumps = [member.dump for member in self._members.values()]
        return self.metrics.render(accept, [self._buried, *dumps])

    # -- reload and end --------------------------------------------------------------------------------------

    async def apply(self, config: Config) -> None:
        """Let everybody prepare; when all can, let all change over, else nobody. Raises ValueError."""
        config = in_force(self._config, config)
        fresh = {pool.name: self._led(pool) for pool in config.pools}
        given = {name: (pool.controller.setpoints.max_batch_size, pool.orders()) for name, pool in fresh.items()}
        answers = await self._ask({"type": "prepare", "config": revealed(config), "orders": given}, _RELOAD_S)
        problems = [
            f"worker {number}: {answers[number].get('error', 'it died meanwhile')}"
            if number in answers
            else f"worker {number} did not answer"
            for number in self._members
            if number not in answers or answers[number].get("error", "it died meanwhile") is not None
        ]
        if problems:
            for member in self._members.values():
                member.channel.send({"type": "discard"})
            raise ValueError("; ".join(problems))
        self.metrics.configure(config.pools)
        if self.admin.tls is not None and self._config.admin.tls is not None:
            renew(self.admin.tls, self._config.admin.tls)
        before, self._pools, self._config = self._pools, fresh, config
        for member in self._members.values():
            member.channel.send({"type": "commit"})
        for wanted in config.pools:
            pool, known = fresh[wanted.name], before.get(wanted.name)
            old, pool.config = pool.config, wanted
            pool.keepers.retain([upstream.url for upstream in wanted.upstreams])
            self._watch(pool)
            if known is pool:
                self.follow_file(pool, old)
            else:
                self._schedule(pool)
            pool.told.clear()
            self._tell(pool)
        logs.setup(config.log)

    def _led(self, wanted: Any) -> LedPool:
        """Return the pool that will be in force: the present one, if what its controller learned still holds."""
        known = self._pools.get(wanted.name)
        if known is not None and keeps_controller(known.config, wanted):
            return known
        pool = LedPool(wanted, self.resumed(wanted, LeadController), self._tell)
        if known is not None:
            pool.taken_out, pool.predictors, pool.keepers = known.taken_out, known.predictors, known.keepers
        return pool

    async def drain(self, *, grace_s: float | None = None) -> bool:
        """Let every worker finish what it has; return when all are gone."""
        self.draining = True
        grace_s = self._config.drain.grace_s if grace_s is None else grace_s
        members = list(self._members.values())
        for member in members:
            member.channel.send({"type": "drain", "grace_s": grace_s})
        for member in members:
            await member.gone.wait()
        return True

    async def stop(self) -> None:
        """End everything now. Safe to call at any time, also more than once."""
        self.draining = True
        for timer in self._ticks.values():
            timer.cancel()
        members = list(self._members.values())
        for member in members:
            member.channel.send({"type": "stop"})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                for member in members:
                    await member.gone.wait()
        await self.shut()
        for task in tuple(self._readers):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
