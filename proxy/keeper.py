"""Keeps what must survive a restart, and the audit log; with or without a file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from controller.decision import Decision
from proxy.admin.operator import PoolView
from proxy.clock import Clock
from proxy.config.model import StateConfig
from proxy.state import capture
from proxy.store import Store
from proxy.traffic import Traffic

__all__ = ["Keeper"]

_LOG = logging.getLogger("trimtab")
_IN_MEMORY = 1000
_PLANS = "/plans"
"""Where the changes to come are kept; no pool can have that name."""


class Keeper:
    """Owns the file. Raises StoreError at once when it cannot be used; later trouble is logged and tried again."""

    def __init__(
        self,
        config: StateConfig,
        traffic: Traffic,
        pools: Callable[[], Iterable[PoolView]],
        clock: Clock,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = Store(Path(config.path)) if config.enabled and config.path else None
        self._saved: dict[str, dict[str, Any]] = self._store.load() if self._store else {}
        self._every_s = config.every_s
        self._traffic = traffic
        self._pools = pools
        self._clock = clock
        self._wall = wall
        self._plans: Callable[[], Mapping[str, Any]] = dict
        self._audit: deque[dict[str, Any]] = deque(maxlen=_IN_MEMORY)
        self._unwritten: list[dict[str, Any]] = []
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()

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
        return await asyncio.to_thread(self._store.audit, limit)

    def plans(self) -> Mapping[str, Any]:
        """Return the changes to come that the file had at start."""
        return self._saved.get(_PLANS, {})

    def start(self, plans: Callable[[], Mapping[str, Any]]) -> None:
        """Begin to save now and then; `plans` returns the changes to come, JSON-ready."""
        self._plans = plans
        if self._store is not None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Save for the last time."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self.save()

    async def save(self) -> None:
        """Write everything down. A disk that is full or gone is logged: serving goes on."""
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
            entries, self._unwritten = self._unwritten, []
            try:
                await asyncio.to_thread(_write, store, states, entries)
            except OSError as error:
                self._unwritten = entries + self._unwritten
                _LOG.error("state was not saved to %s: %s", store.path, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()


def _write(store: Store, states: Mapping[str, Mapping[str, Any]], entries: list[dict[str, Any]]) -> None:
    store.save(states)
    if entries:
        store.record(entries)
