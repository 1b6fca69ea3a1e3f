"""What operators look at and turn, in a single process as well as in the leader of several workers."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from controller.decision import Decision
from controller.loop import PoolController
from controller.observation import Observation
from proxy.admin.history import History
from proxy.admin.operator import Reloaded
from proxy.admin.scheduled import ScheduledChanges
from proxy.admin.server import AdminServer
from proxy.admin.temporary import TemporaryChanges
from proxy.aside import Aside, Overdue
from proxy.clock import Clock, LoopClock
from proxy.config.difference import compare
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import Config, PoolConfig
from proxy.config.rules import controller_for
from proxy.observe.collectors import StateKept
from proxy.observe.metrics import Metrics
from proxy.observe.traffic import Traffic
from proxy.pool_view import PoolView
from proxy.state.journal import JournalFile
from proxy.state.keeper import Keeper
from proxy.state.snapshot import restore, restored_config

__all__ = ["Steering"]

READING_S: Final = 10.0
"""A configuration that has not been read by then is not: the old one stays."""
_MOST_HANGING: Final = 8
"""So many threads may hang in reading it; each reload begins anew, since what hung may have been put right."""
_LOG = logging.getLogger("trimtab")
_C = TypeVar("_C", bound=PoolController)
_DECISIONS = logging.getLogger("trimtab.decisions")
_NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What comes of data that a damaged file, or another version, has for us."""


class Steering(ABC):
    """Implements `proxy.admin.operator.Operator` over pools that somebody else has: state, audit and admin API."""

    def __init__(self, config: Config, *, reread: Callable[[], Config], clock: Clock | None = None) -> None:
        """Create it inside a running event loop, whose clock is used by default."""
        self.clock = clock = clock or LoopClock(asyncio.get_running_loop())
        self.metrics = metrics = Metrics(config.pools)
        self.generation = 1
        self._reread = reread
        self._reloading = asyncio.Lock()
        self._reading = Aside("reading the configuration", READING_S, _MOST_HANGING)
        self.traffic = Traffic(metrics)
        self._journal = JournalFile.of(config.log)
        self.keeper = Keeper(config.state, self.traffic, lambda: self.pools.values(), clock)
        metrics.registry.register(StateKept(lambda: self.keeper.kept))
        self.temporary = TemporaryChanges(clock, lambda: self.pools, self.decided)
        self.scheduled = ScheduledChanges(clock, lambda: self.pools, self.decided, self.temporary)
        self.history = History(clock, lambda: self.pools, self.scheduled.wall)
        self.admin = AdminServer(self, config.admin)

    @property
    @abstractmethod
    def pools(self) -> Mapping[str, PoolView]:
        """Pools by name, in order."""

    @property
    @abstractmethod
    def config(self) -> Config:
        """The configuration in force."""

    @abstractmethod
    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when it should."""

    @abstractmethod
    async def apply(self, config: Config) -> None:
        """Put a configuration in force. Raises ValueError, and changes nothing, when that cannot be."""

    async def reload(self) -> Reloaded:
        """Read the configuration again. Raises ConfigError, and keeps the old one, when it is not valid."""
        async with self._reloading:
            try:
                config = await self._reading.run(self._reread)
                difference = compare(self.config, config)
                await self.apply(config)
            except ConfigError:
                self.metrics.reloaded(ok=False)
                raise
            except Overdue as error:
                self.metrics.reloaded(ok=False)
                raise ConfigError([Problem("", "", f"{error}; is it on a mount that hangs, or a pipe?")]) from error
            except ValueError as error:
                self.metrics.reloaded(ok=False)
                raise ConfigError([Problem("", "", str(error))]) from error
            self.metrics.reloaded(ok=True)
            self.generation += 1
            return Reloaded(self.generation, difference.changed, difference.restart_required)

    async def open(self, admin: socket.socket) -> None:
        """Answer operators on a listening socket, and begin to save state."""
        plans = self.keeper.plans()
        for expiring in _each(plans, "expiring"):
            _kept(
                "a change that was to be taken back",
                partial(self.temporary.restore, [expiring], self.scheduled.wall()),
            )
        for planned in _each(plans, "planned"):
            _kept("a change that was planned", partial(self.scheduled.restore, [planned]))
        self.history.start()
        await self.admin.start(admin)
        self.keeper.start(
            lambda: {"expiring": self.temporary.dump(self.scheduled.wall()), "planned": self.scheduled.dump()}
        )

    async def shut(self) -> None:
        """Save for the last time and stop answering."""
        await self.keeper.stop()
        self.scheduled.stop()
        self.history.stop()
        if self._journal is not None:
            self._journal.close()
        self.temporary.stop()
        await self.admin.stop()

    def resumed(self, config: PoolConfig, kind: type[_C] = PoolController) -> _C:  # type: ignore[assignment]
        """Return a controller that goes on where the last run's stopped, if that was kept."""
        saved, now = self.keeper.saved(config.name), self.clock.now()
        journal = None if self._journal is None else self._journal.write
        if journal is not None and kind is not PoolController:
            _LOG.warning("log.journal is kept by a single process only; pool %s is led for several", config.name)
            journal = None
        try:
            controller = controller_for(restored_config(config, saved), now, kind, journal)
            shown = restore(config, controller, saved, now, time.time())
        except _NONSENSE as error:
            _LOG.error("pool %s: what was kept cannot be understood and is left out: %r", config.name, error)
            controller, shown = controller_for(config, now, kind, journal), 0
        if shown:
            _LOG.info("pool %s goes on where it stopped, with %d requests to learn from", config.name, shown)
        return controller

    def decided(self, pool: PoolView, decision: Decision) -> None:
        """Act on a decision an operator made: count it, and let through whoever can go now."""
        self.metrics.decided(pool.name, decision.rule)
        self.metrics.slo_changed(pool.name, pool.controller.slo)
        self.keeper.note(decision)
        pool.knobs_changed()

    def note(self, decision: Decision) -> None:
        """Count and log a decision that nobody is waiting for."""
        self.metrics.decided(decision.pool, decision.rule)
        if decision.actor.startswith("admin:"):
            self.keeper.note(decision)
        _DECISIONS.info(
            "pool %s: %s", decision.pool, decision.text,
            extra={"decision": decision.id, "rule": decision.rule, "old": decision.old, "new": decision.new},
        )  # fmt: skip

    def follow_file(self, pool: PoolView, before: PoolConfig) -> None:
        """Let a controller take over what changed in the file; what operators set meanwhile stays otherwise."""
        wanted, now, actor = pool.config, self.clock.now(), "admin:reload"
        if before.slo != wanted.slo:
            self.note(pool.controller.set_slo(wanted.to_slo(), now, actor))
        promised = wanted.to_class_slos()
        if before.to_class_slos() != promised:
            for klass in wanted.classes:
                if pool.controller.class_slos.get(klass) != promised.get(klass):
                    self.note(pool.controller.set_slo(promised.get(klass), now, actor, klass))
        if (before.law, before.law_options) != (wanted.law, wanted.law_options):
            self.note(pool.controller.set_law(wanted.law, wanted.law_options, now, actor))

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of a pool, oldest first."""
        return self.traffic.recent(pool)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the form that an Accept header asks for, and its content type."""
        return self.metrics.render(accept)

    async def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest decisions of operators, newest first."""
        return await self.keeper.audit(limit)


def _each(kept: Mapping[str, Any], name: str) -> list[Any]:
    """Return the entries of a list that was kept; none where there is no list."""
    entries = kept.get(name, ())
    return list(entries) if isinstance(entries, list | tuple) else []


def _kept(what: str, restore: Callable[[], None]) -> None:
    """Take over one thing that was kept; one that makes no sense is logged and left out."""
    try:
        restore()
    except _NONSENSE as error:
        _LOG.error("%s cannot be understood and is left out: %r", what, error)
