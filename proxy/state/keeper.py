"""Keeps what must survive a restart, and the audit log; with or without a file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from controller.decision import Decision
from proxy.aside import Aside, Overdue
from proxy.clock import Clock
from proxy.config.model import StateConfig
from proxy.dispatch.lengths import Lengths
from proxy.observe.traffic import Traffic
from proxy.pool_view import PoolView
from proxy.state.snapshot import capture
from proxy.state.store import Store, StoreError

__all__ = ["Keeper"]

_LOG = logging.getLogger("trimtab")
_IN_MEMORY = 1000
_UNWRITTEN = 10_000
"""Decisions that wait for a disk to have room; older ones are only in the log then."""
_PLANS = "/plans"
"""Where the changes to come are kept; no pool can have that name."""
FILE_S: Final = 10.0
"""A disk that has not answered by then hangs."""
PREDICTOR_EVERY_S = 300.0
"""Between two savings of what predictors have learned; also on shutdown."""


class Keeper:
    """Owns the file. Whatever is wrong with it is logged, told by `kept`, and tried again: serving goes on."""

    def __init__(
        self,
        config: StateConfig,
        traffic: Traffic,
        pools: Callable[[], Iterable[PoolView]],
        clock: Clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = Store(Path(config.path)) if config.enabled and config.path else None
        self._trouble: str | None = None
        self._saved: dict[str, dict[str, Any]] = {} if self._store is None else self._begin(self._store)
        self._every_s = config.every_s
        self._traffic = traffic
        self._pools = pools
        self._clock = clock
        self._wall = wall
        self._plans: Callable[[], Mapping[str, Any]] = dict
        self._audit: deque[dict[str, Any]] = deque(maxlen=_IN_MEMORY)
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=_UNWRITTEN)
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._file = Aside(f"state.path: {config.path}: reading or writing it", FILE_S)
        self._predictors: Callable[[], Mapping[str, Lengths]] = dict
        self._predictors_due = clock.now() + PREDICTOR_EVERY_S

    @property
    def kept(self) -> bool | None:
        """Whether what must survive a restart is being written down; None where nothing is to be."""
        return None if self._store is None else self._trouble is None

    def _begin(self, store: Store) -> dict[str, dict[str, Any]]:
        """Make the file ready and return what is in it; {} where that cannot be had."""
        self._prepare(store)
        try:
            return store.load()
        except StoreError as error:
            _LOG.error("nothing that was learned or set before is known: %s", error)
            return {}

    def _prepare(self, store: Store) -> bool:
        """Make the file ready to be written. Returns whether it is."""
        try:
            damage = store.prepare()
        except StoreError as error:
            self._failed(str(error))
            return False
        if damage is not None:
            _LOG.error("state.path: %s was damaged, and a new one is begun: %s", store.path, damage)
        return True

    def _failed(self, trouble: str) -> None:
        """Log trouble once, not every time it is met."""
        if trouble != self._trouble:
            self._trouble = trouble
            _LOG.error("nothing will survive a restart for now (state.enabled: false turns this off): %s", trouble)

    def _went_well(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            _LOG.warning("what must survive a restart is being written down again")

    def keep_predictors(self, predictors: Callable[[], Mapping[str, Lengths]]) -> None:
        """Show the pools' predictors what they had learned when the file was written, and save them from now on.

        What cannot be read is learned again.
        """
        self._predictors = predictors
        store = self._store
        if store is None:
            return
        for pool, lengths in predictors().items():
            try:
                text = store.load_predictor(pool)
            except OSError as error:
                _LOG.warning("pool %s: what its predictor had learned cannot be read: %s", pool, error)
                continue
            if text is not None and lengths.restore(text.split("\n")):
                _LOG.info("pool %s goes on predicting lengths from what it had learned", pool)

    def saved(self, pool: str) -> Mapping[str, Any] | None:
        """Return, once, what the file had about `pool` at start; None when nothing."""
        return self._saved.pop(pool, None)

    def note(self, decision: Decision) -> None:
        """Put an operator's decision into the audit log."""
        entry = decision.as_dict()
        self._audit.appendleft(entry)
        if self._store is not None:
            self._unwritten.append(entry)

    async def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest decisions of operators, newest first, those of earlier runs included."""
        if self._store is None:
            return list(self._audit)[:limit]
        await self.save()
        try:
            found = await self._file.run(partial(self._store.audit, limit))
        except OSError as error:
            _LOG.error("the audit log in %s cannot be read: %s", self._store.path, error)
            return list(self._audit)[:limit]
        return [*reversed(self._unwritten), *found][:limit]

    def plans(self) -> Mapping[str, Any]:
        """Return the changes to come that the file had at start."""
        return self._saved.get(_PLANS, {})

    def start(self, plans: Callable[[], Mapping[str, Any]]) -> None:
        """Begin to save now and then; `plans` returns the changes to come, JSON-ready."""
        self._plans = plans
        if self._store is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Save for the last time, unless the disk hangs: nobody waits for that longer than `FILE_S`."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            self._predictors_due = 0.0
            await self.save()
        if self._store is not None and not self._file.hangs:
            self._store.close()

    async def save(self) -> None:
        """Write everything down. A disk that is full or gone is logged, once: serving goes on."""
        store = self._store
        if store is None:
            return
        now, wall = self._clock.now(), self._wall()
        states = {
            pool.name: capture(pool.config, pool.controller, self._traffic.recent(pool.name), now, wall)
            for pool in self._pools()
        }
        states[_PLANS] = dict(self._plans())
        async with self._writing:
            try:
                if self._trouble is not None and not await self._file.run(partial(self._prepare, store)):
                    return
            except Overdue as error:
                self._failed(str(error))
                return
            entries = list(self._unwritten)
            self._unwritten.clear()
            try:
                await self._file.run(partial(_write, store, states, entries))
            except Overdue as error:
                self._put_back_unless_written(entries, error)
                self._failed(str(error))
                return
            except OSError as error:
                self._put_back(entries)
                self._failed(f"state.path: {store.path}: {error}")
                return
            self._went_well()
            if now >= self._predictors_due:
                self._predictors_due = now + PREDICTOR_EVERY_S
                await self._save_predictors(store)

    def _put_back(self, entries: list[dict[str, Any]]) -> None:
        self._unwritten = deque([*entries, *self._unwritten], maxlen=_UNWRITTEN)

    def _put_back_unless_written(self, entries: list[dict[str, Any]], late: Overdue) -> None:
        """Put back what is still being written only once that has failed: it must not be there twice."""
        if late.outcome is None:
            self._put_back(entries)
            return
        late.outcome.add_done_callback(
            lambda outcome: self._put_back(entries) if outcome.cancelled() or outcome.exception() else None
        )

    async def _save_predictors(self, store: Store) -> None:
        """Write down what predictors have learned: megabytes, so seldom, and put together a piece at a time."""
        for pool, lengths in self._predictors().items():
            lines = []
            for line in lengths.state():
                lines.append(line)
                if len(lines) % 4 == 0:
                    await asyncio.sleep(0)
            try:
                await self._file.run(partial(store.save_predictor, pool, "\n".join(lines)))
            except OSError as error:
                _LOG.error("what the predictor of pool %s has learned was not saved: %s", pool, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()


def _write(store: Store, states: Mapping[str, Mapping[str, Any]], entries: list[dict[str, Any]]) -> None:
    store.save(states)
    if entries:
        store.record(entries)
