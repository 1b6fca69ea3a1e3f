"""The data plane's listening socket: aiohttp's low-level server, with our errors and our limits."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from proxy.handler import Handler
from proxy.headers import RequestFields, lines_of
from proxy.incoming import Incoming
from proxy.outcome import BadInput, HeadersTooLarge, InternalFault, Outcome, to_reply
from proxy.reply import SENT_CLOSE, head_bytes
from proxy.wire.registry import wire_format

__all__ = ["DataServer", "ServerLimits"]

log = logging.getLogger("trimtab.proxy")

_FULL_BODY = (
    b'{"error":{"message":"Too many open connections.","type":"server_error","code":"connections_exhausted"}}'
)
_FULL = (
    head_bytes(
        503,
        b"",
        b"Content-Type: application/json\r\nRetry-After: 1\r\nX-Trimtab-Reason: connections_exhausted\r\n",
        length=len(_FULL_BODY),
        close=True,
    )
    + _FULL_BODY
)


class ServerLimits:
    """What one client connection may do (bytes, counts, seconds)."""

    __slots__ = ("keepalive_timeout_s", "max_connections", "max_header_line_bytes", "max_headers")

    def __init__(
        self,
        *,
        max_header_line_bytes: int = 16_384,
        max_headers: int = 128,
        max_connections: int = 10_000,
        keepalive_timeout_s: float = 75.0,
    ) -> None:
        self.max_header_line_bytes = max_header_line_bytes
        self.max_headers = max_headers
        self.max_connections = max_connections
        self.keepalive_timeout_s = keepalive_timeout_s


class _Protocol(RequestHandler):
    """aiohttp's server protocol, answering what it refuses in JSON and with the right code."""

    __slots__ = ("seen",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: RequestFields | None = None
        """The fields of the connection's latest request."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Write the answer to a request that could not be parsed, or whose handler failed, and close."""
        outcome: Outcome
        if status == 400:
            too_long = isinstance(exc, LineTooLong) or "Too many" in (message or "")
            outcome = HeadersTooLarge() if too_long else BadInput("The request is malformed.")
        else:
            log.error("unhandled error in the server", exc_info=exc)
            outcome = InternalFault()
        transport = self.transport
        if transport is not None and not transport.is_closing():
            code, fields, body = to_reply(outcome, wire_format("openai"), "-")
            transport.write(head_bytes(code, b"", lines_of(fields), length=len(body), close=True) + body)
        return SENT_CLOSE


def _incoming(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Incoming:
    """Make what a handler is called with, in the way aiohttp asks for it."""
    return Incoming(message, payload, protocol, writer)


class _Server(web.Server):
    """Makes protocols, up to a number of open connections."""

    def __init__(self, handler: Handler, max_connections: int, **options: Any) -> None:
        super().__init__(
            cast(Any, handler), request_factory=cast(Any, _incoming), handler_cancellation=True, **options
        )
        self._max_connections = max_connections

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        if len(self._connections) >= self._max_connections:
            transport.write(_FULL)
            transport.close()
            return
        super().connection_made(handler, transport)


class DataServer:
    """Listens for clients and hands their requests to a `Handler`."""

    def __init__(self, handler: Handler, limits: ServerLimits | None = None) -> None:
        limits = limits or ServerLimits()
        self._server = _Server(
            handler,
            limits.max_connections,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=2.0,
            max_line_size=limits.max_header_line_bytes,
            max_field_size=limits.max_header_line_bytes,
            max_headers=limits.max_headers,
        )
        self._listening: asyncio.Server | None = None
        self.port = 0
        """The port that is bound, once `start` has returned."""

    @property
    def connections(self) -> int:
        """Client connections that are open."""
        return len(self._server.connections)

    async def start(
        self,
        host: str,
        port: int,
        *,
        backlog: int = 1024,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Bind and listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self._server, host, port, backlog=backlog, reuse_port=reuse_port or None, ssl=tls
        )
        self.port = self._listening.sockets[0].getsockname()[1]

    async def start_on(self, sock: socket.socket, *, backlog: int = 1024, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that was bound beforehand."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(self._server, sock=sock, backlog=backlog, ssl=tls)
        self.port = sock.getsockname()[1]

    async def stop(self, *, patience_s: float = 0.0) -> None:
        """Stop listening; close idle connections now, and the others after `patience_s`."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self._server.pre_shutdown()
        # aiohttp takes 0 for "without a limit".
        await self._server.shutdown(max(patience_s, 0.001))
