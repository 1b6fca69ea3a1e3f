"""The worker's connections: how many there may be, how long each may take, and what is said to junk."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from backend.api.errors import HeadTooLarge, InvalidRequest, Unavailable, error_response

__all__ = ["Patience", "WorkerRunner", "connections_that_fit"]

_LOG = logging.getLogger("trimtab.worker")
_MAX_LINE: Final = 16_384
_MAX_HEADERS: Final = 128
_SWEEP_S: Final = 2.5
_LOOK_S: Final = 2e-6
"""Nobody was found idle: so long for each connection nobody looks again, since newcomers may be many."""
_SAY_AGAIN_S: Final = 60.0
_OTHER_FILES: Final = 128
"""What the process has open besides connections: the engine, the grammars' processes, libraries."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How many connections there may be, and how long they may take, in seconds."""

    max_connections: int = 8192
    head_s: float = 30.0
    """From the first byte of a request to the end of its head."""
    idle_s: float = 75.0
    """Without a request."""
    answer_s: float = 60.0
    """Without taking anything of an answer, and a second more for every `min_rate` bytes of it that wait."""
    min_rate: int = 500


def connections_that_fit(wanted: int) -> int:
    """Return how many connections of `wanted` there is room for among the open files; raises their limit first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited, needed = resource.RLIM_INFINITY, wanted + _OTHER_FILES
    if soft != unlimited and soft < needed:
        soft = needed if hard == unlimited else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == unlimited or soft >= needed:
        return wanted
    fit = max(1, soft - _OTHER_FILES)
    _LOG.warning("only %d files may be open: %d connections are let in; raise it with `ulimit -n`", soft, fit)
    return fit


class _Connection(RequestHandler):
    """A connection whose requests' heads have a time of their own."""

    __slots__ = ("_begun", "_crowd")

    def __init__(self, server: _Server, **kwargs: Any) -> None:
        super().__init__(server, **kwargs)
        self._crowd = server
        self._begun = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, if there is room."""
        if self._crowd.has_room():
            super().connection_made(transport)
            return
        self._manager = None
        self._force_close = True
        told = cast(asyncio.Transport, transport)
        told.write(_REFUSAL)
        told.close()

    def data_received(self, data: bytes) -> None:
        """Take bytes in. From the first of a head its time runs."""
        idle = self.idle
        super().data_received(data)
        if not (idle and self.idle):
            self._begun = False
        elif data and not self._begun:
            self._begun = True
            self._bound(self._crowd.patience.head_s)

    @property
    def idle(self) -> bool:
        """Whether it waits for a request, or for the rest of a head."""
        waiter = self._waiter
        return self._current_request is None and not self._messages and waiter is not None and not waiter.done()

    @property
    def rank(self) -> tuple[bool, float]:
        """What orders idle connections: those without any of a head first, then by when their time is up."""
        return self._begun, self._next_keepalive_close_time

    def _bound(self, seconds: float) -> None:
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        self._next_keepalive_close_time = self._loop.time() + seconds
        self._keepalive_handle = self._loop.call_at(self._next_keepalive_close_time, self._process_keepalive)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed with an error object, and close the connection."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun and cannot be taken back")
        if isinstance(exc, LineTooLong):
            answer = error_response(HeadTooLarge(f"A line of the head is longer than {_MAX_LINE} bytes."))
        else:
            first = (message or "").strip().partition("\n")[0].rstrip(":. ")
            text = f"The request is not HTTP/1.1: {first[:200] or 'it cannot be parsed'}."
            answer = error_response(InvalidRequest(text, code="invalid_http"))
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes the connections of a listener and keeps them within their number.

    Where there are too many, the one that has been idle for longest is closed for a newcomer; only where none is idle
    the newcomer is refused.
    """

    def __init__(self, made: web.Server, patience: Patience) -> None:
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )
        self.patience = patience
        self._candidates: deque[tuple[_Connection, tuple[bool, float]]] = deque()
        self._look_at = self._say_at = 0.0
        self._stalled: dict[RequestHandler, tuple[float, int]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def __call__(self) -> RequestHandler:
        """Return the protocol of a new connection."""
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._sweep_s, self._sweep)
        return _Connection(self, loop=self._loop, **self._kwargs)

    async def shutdown(self, timeout: float | None = None) -> None:
        """Close all connections, and watch nobody any more."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await super().shutdown(timeout)

    def has_room(self) -> bool:
        """Whether one more connection may be let in; closes an idle one for it, if need be."""
        if len(self._connections) < self.patience.max_connections:
            return True
        now = self._loop.time()
        if not self._candidates and now >= self._look_at:
            found = [handler for handler in self.connections if isinstance(handler, _Connection) and handler.idle]
            self._candidates.extend(sorted(((one, one.rank) for one in found), key=lambda pair: pair[1]))
            self._look_at = now + _LOOK_S * len(self._connections)
        while self._candidates:
            handler, rank = self._candidates.popleft()
            if handler in self._connections and handler.idle and handler.rank == rank:
                handler.force_close()
                del self._connections[handler]  # it is not one any more, though the system has yet to say so
                return True
        if now >= self._say_at:
            self._say_at = now + _SAY_AGAIN_S
            _LOG.warning("all of %d connections are in use: newcomers are refused", self.patience.max_connections)
        return False

    @property
    def _sweep_s(self) -> float:
        return min(_SWEEP_S, self.patience.answer_s / 4.0)

    def _sweep(self) -> None:
        """Give up clients that take nothing of their answers."""
        now = self._loop.time()
        stalled, self._stalled = self._stalled, {}
        for handler, transport in tuple(self._connections.items()):
            if handler.writing_paused or transport.is_closing():
                size = transport.get_write_buffer_size()
                since, size = self._stalled[handler] = stalled.get(handler, (now, size))
                if transport.get_write_buffer_size() < size:
                    self._stalled[handler] = (now, transport.get_write_buffer_size())
                elif now > since + self.patience.answer_s + size / self.patience.min_rate:
                    transport.abort()
        some = bool(self._connections)
        self._sweeper = self._loop.call_later(self._sweep_s, self._sweep) if some else None


class WorkerRunner(web.AppRunner):
    """Runs the worker's application on connections that are watched."""

    def __init__(self, app: web.Application, patience: Patience, *, shutdown_timeout: float) -> None:
        wire = logging.getLogger("trimtab.worker.wire")
        wire.setLevel(logging.CRITICAL)  # anybody could fill the log with what is no HTTP
        super().__init__(
            app,
            handler_cancellation=True,
            access_log=None,
            logger=wire,
            shutdown_timeout=shutdown_timeout,
            keepalive_timeout=patience.idle_s,
            max_line_size=_MAX_LINE,
            max_field_size=_MAX_LINE,
            max_headers=_MAX_HEADERS,
            auto_decompress=False,
        )
        self._patience = patience

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._patience)


def _refusal() -> bytes:
    error = Unavailable("All connections are in use.", code="too_many_connections")
    body = error_response(error).body
    assert isinstance(body, bytes)
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )


_REFUSAL: Final = _refusal()
