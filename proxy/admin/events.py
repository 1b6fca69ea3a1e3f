"""The event stream: every decision as it is made, and the state of every pool once a second."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator

from aiohttp import web

from proxy.admin.base import Group
from proxy.admin.problem import ApiError
from proxy.admin.requests import seconds
from proxy.admin.views import pool_summary, show_decision

__all__ = ["EventsApi", "Position"]

MAX_STREAMS = 32
PATIENCE_S = 30.0
"""A reader that has taken nothing for so long gives its place to others."""
_ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,62}):(\d{1,15})$")


class Position(dict[str, int]):
    """The last decision seen of each pool; also the id of an event, `chat:12,embed:3`."""

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read an event's id. What cannot be read counts as nothing seen."""
        found = (_ENTRY.match(entry.strip()) for entry in text[:8192].split(","))
        return cls({match[1]: int(match[2]) for match in found if match})

    def __str__(self) -> str:
        return ",".join(f"{name}:{number}" for name, number in self.items())


class EventsApi(Group):
    """Server-sent events. A client that comes back with Last-Event-ID misses no decision that is still kept."""

    _open = 0

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Decisions and states, until the client leaves."""
        every_s = seconds(request, "every_s", 0.2, 60.0) or 1.0
        if self._open >= MAX_STREAMS:
            raise ApiError(503, f"{MAX_STREAMS} event streams are open already.", headers={"Retry-After": "5"})
        seen = self._start(request.headers.get("Last-Event-ID"))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        self._open += 1
        try:
            await stream.prepare(request)
            with contextlib.suppress(ConnectionResetError):  # the client's way of saying goodbye
                while True:
                    news = "".join((*self._decisions(seen), self._states(seen))).encode()
                    async with asyncio.timeout(PATIENCE_S):
                        await stream.write(news)
                    await asyncio.sleep(every_s)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._open -= 1
        return stream

    def _start(self, last_event_id: str | None) -> Position:
        """Return where to begin: after what was seen, else with the next decision."""
        if last_event_id is not None:
            return Position.parse(last_event_id)
        logs = ((pool.name, pool.controller.decisions.latest(1)) for pool in self.operator.pools.values())
        return Position({name: newest[0].id if newest else 0 for name, newest in logs})

    def _decisions(self, seen: Position) -> Iterator[str]:
        for pool in self.operator.pools.values():
            for decision in pool.controller.decisions.since(seen.get(pool.name, 0)):
                seen[pool.name] = decision.id
                yield f"event: decision\nid: {seen}\ndata: {show_decision(decision).model_dump_json()}\n\n"

    def _states(self, seen: Position) -> str:
        now = self.now()
        pools = []
        for pool in self.operator.pools.values():
            live = pool.controller.snapshot(now)
            pools.append(
                pool_summary(pool, now).model_dump()
                | {name: live.get(name) for name in ("quantiles", "attainment", "counts", "arrival_rate")}
            )
        return f"event: state\nid: {seen}\ndata: {json.dumps({'at': now, 'pools': pools})}\n\n"
