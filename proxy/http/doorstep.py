"""Connections that carry no request: they cost next to nothing, and are the first to go when there are too many."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

__all__ = ["Doorstep", "Patience", "Porch", "Resting"]

_LOG = logging.getLogger("trimtab.proxy")
_SWEEP_S: Final = 2.5
_REST_S: Final = 5.0
"""A connection that has been idle for so long gives up its parser."""
_LOOK_S: Final = 2e-6
"""Nobody was found idle: so long for each connection nobody looks again, since newcomers may be many."""
_SAY_AGAIN_S: Final = 60.0


class Patience:
    """How long connections may take, in seconds, and how many there may be."""

    __slots__ = ("answer_s", "idle_s", "max_connections", "min_rate")

    def __init__(self, *, max_connections: int, idle_s: float, answer_s: float, min_rate: int) -> None:
        self.max_connections = max_connections
        self.idle_s = idle_s
        """Without a request."""
        self.answer_s = answer_s
        """Without taking anything of an answer, and a second more for every `min_rate` bytes of it that wait."""
        self.min_rate = min_rate


class Resting(Protocol):
    """What a server's protocol tells about itself."""

    def idle_since(self) -> float | None:
        """Return when it last had something to do (the loop's time); None while it has."""
        ...

    def step_out(self) -> bool:
        """Give the transport up without closing it, if nothing of a message has come. Returns whether it did."""
        ...


class Porch(asyncio.Protocol):
    """A connection that has not said anything yet, or has been silent for a while."""

    __slots__ = ("_doorstep", "since", "transport")

    def __init__(self, doorstep: Doorstep) -> None:
        self._doorstep = doorstep
        self.since = 0.0
        """Since when it is idle (the loop's time)."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first byte, if there is room."""
        self.transport = cast(asyncio.Transport, transport)
        self._doorstep.came(self)

    def data_received(self, data: bytes) -> None:
        """Let the server's protocol take over."""
        self._doorstep.spoke(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It left."""
        self._doorstep.left(self)
        self.transport = None


class Doorstep:
    """Makes the protocols of a listener, and keeps its connections within their number and their time.

    `server` makes a protocol, with all that parsing needs, for a connection that speaks; it goes back to a `Porch`
    when it has been idle for a while. Where there are too many connections, the one that has been idle for longest is
    closed for a newcomer; only where none is idle the newcomer is told `refusal` and closed.
    """

    def __init__(self, server: web.Server, patience: Patience, refusal: bytes, name: str) -> None:
        self._server = server
        self._patience = patience
        self._refusal = refusal
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Porch, None] = {}
        """Longest idle first."""
        self._stalled: dict[RequestHandler, tuple[float, int]] = {}
        """Whose client takes nothing: since when, and how much waited then."""
        self._expiry: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = min(_SWEEP_S, patience.answer_s / 4.0)
        self._look_at = self._say_at = 0.0
        self.evicted = 0
        """Idle connections closed for newcomers."""
        self.refused = 0
        """Newcomers that nobody could be closed for."""

    def __call__(self) -> Porch:
        """Return the protocol of a new connection."""
        return Porch(self)

    @property
    def idle(self) -> int:
        """How many connections are known to be idle."""
        return len(self._idle)

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._idle) + len(self._server._connections)

    def close(self) -> None:
        """Close whoever is idle, and watch nobody any more."""
        for timer in (self._expiry, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._expiry = self._sweeper = None
        for porch in tuple(self._idle):
            self._shut(porch)

    # -- what porches say ----------------------------------------------------------------------------------

    def came(self, porch: Porch) -> None:
        """A connection was made."""
        if self.open >= self._patience.max_connections and not self._make_room():
            self._refuse(porch)
            return
        self._rest(porch, self._loop.time())

    def spoke(self, porch: Porch, data: bytes) -> None:
        """A connection has something to say."""
        transport = porch.transport
        if self._idle.pop(porch, self) is self or transport is None or transport.is_closing():
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        handler.data_received(data)

    def left(self, porch: Porch) -> None:
        """A connection is lost."""
        self._idle.pop(porch, None)

    # -- inside --------------------------------------------------------------------------------------------

    def _rest(self, porch: Porch, since: float) -> None:
        porch.since = since
        self._idle[porch] = None
        if self._expiry is None:
            self._expiry = self._loop.call_later(self._patience.idle_s, self._expire)

    def _shut(self, porch: Porch) -> None:
        self._idle.pop(porch, None)
        if porch.transport is not None:
            porch.transport.close()

    def _expire(self) -> None:
        """Close those who have been idle for too long."""
        self._expiry = None
        now = self._loop.time()
        while self._idle:
            porch = next(iter(self._idle))
            left = porch.since + self._patience.idle_s - now
            if left > 0.001:
                self._expiry = self._loop.call_later(left, self._expire)
                return
            self._shut(porch)

    def _make_room(self) -> bool:
        """Close whoever has been idle for longest. Returns False when nobody is idle."""
        if not self._idle:
            now = self._loop.time()
            if now < self._look_at:
                return False
            self._step_out(now)
        if self._idle:
            self._shut(next(iter(self._idle)))
        else:
            begun = [
                (since, at)
                for at, handler in enumerate(self._handlers)
                if (since := _idle_since(handler)) is not None
            ]
            if not begun:
                self._look_at = self._loop.time() + _LOOK_S * len(self._server._connections)
                return False
            # Nobody but those that have begun to say something and have not come to the end of a head.
            self._handlers[min(begun)[1]].force_close()
        self.evicted += 1
        return True

    @property
    def _handlers(self) -> list[RequestHandler]:
        return list(self._server._connections)

    def _refuse(self, porch: Porch) -> None:
        self.refused += 1
        assert porch.transport is not None
        porch.transport.write(self._refusal)
        porch.transport.close()
        now = self._loop.time()
        if now >= self._say_at:
            self._say_at = now + _SAY_AGAIN_S
            _LOG.warning(
                "%s: all of %d connections are in use; newcomers are refused (%d so far)",
                self._name,
                self._patience.max_connections,
                self.refused,
            )

    def _step_out(self, before: float) -> None:
        """Let those rest that have been idle since `before`, in that order."""
        found = []
        for at, (handler, transport) in enumerate(self._server._connections.items()):
            since = _idle_since(handler)
            if since is not None and since <= before and not transport.is_closing():
                found.append((since, at, handler, transport))
        for since, _, handler, transport in sorted(found):
            if cast(Resting, handler).step_out():
                porch = Porch(self)
                porch.transport = transport
                transport.set_protocol(porch)
                self._rest(porch, since)

    def _sweep(self) -> None:
        """Look after all connections, from time to time."""
        now = self._loop.time()
        self._step_out(now - _REST_S)
        stalled, self._stalled = self._stalled, {}
        for handler, transport in tuple(self._server._connections.items()):
            if handler.writing_paused or transport.is_closing():
                size = transport.get_write_buffer_size()
                since, size = self._stalled[handler] = stalled.get(handler, (now, size))
                if now > since + self._patience.answer_s + size / self._patience.min_rate:
                    transport.abort()
        some = bool(self._server._connections)
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep) if some else None


def _idle_since(handler: Any) -> float | None:
    since: float | None = handler.idle_since()
    return since
