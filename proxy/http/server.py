"""The data plane's listening socket: aiohttp's low-level server, with our errors and our limits."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy.http.aiohttp_names import check
from proxy.http.doorstep import Doorstep, Patience
from proxy.http.held import UPLOAD_BYTES
from proxy.http.protocol import ClientProtocol
from proxy.http.reply import head_bytes
from proxy.http.served import Receiver

__all__ = ["DataServer", "ServerLimits"]

_FULL_BODY = (
    b'{"error":{"message":"Too many open connections.","type":"server_error","code":"connections_exhausted"}}'
)
_FULL = (
    head_bytes(
        503,
        None,
        b"Content-Type: application/json\r\nRetry-After: 1\r\nX-Trimtab-Reason: connections_exhausted\r\n",
        length=len(_FULL_BODY),
        close=True,
    )
    + _FULL_BODY
)


_HANDSHAKE_S = 10.0
"""A client that has not agreed on keys by then is not going to."""


class ServerLimits:
    """What one client connection may do (bytes, counts, seconds)."""

    __slots__ = (
        "answer_timeout_s",
        "head_timeout_s",
        "keepalive_timeout_s",
        "max_connections",
        "max_header_line_bytes",
        "max_headers",
        "min_rate_bytes",
    )

    def __init__(
        self,
        *,
        max_header_line_bytes: int = 16_384,
        max_headers: int = 128,
        max_connections: int = 10_000,
        keepalive_timeout_s: float = 75.0,
        head_timeout_s: float = 30.0,
        answer_timeout_s: float = 60.0,
        min_rate_bytes: int = 500,
    ) -> None:
        self.max_header_line_bytes = max_header_line_bytes
        self.max_headers = max_headers
        self.max_connections = max_connections
        self.keepalive_timeout_s = keepalive_timeout_s
        self.head_timeout_s = head_timeout_s
        self.answer_timeout_s = answer_timeout_s
        self.min_rate_bytes = min_rate_bytes


class _Server(web.Server):
    """Makes protocols for connections that speak."""

    def __init__(self, handler: Receiver, head_timeout_s: float, **options: Any) -> None:
        super().__init__(cast(Any, handler), handler_cancellation=True, **options)
        self._head_timeout_s = head_timeout_s

    def __call__(self) -> RequestHandler:
        return ClientProtocol(self, loop=self._loop, head_timeout_s=self._head_timeout_s, **self._kwargs)


class DataServer:
    """Listens for clients and hands their requests to whoever serves them."""

    def __init__(self, handler: Receiver, limits: ServerLimits | None = None) -> None:
        limits = limits or ServerLimits()
        self._server = _Server(
            handler,
            min(limits.head_timeout_s, limits.keepalive_timeout_s),
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=limits.keepalive_timeout_s,
            lingering_time=2.0,
            max_line_size=limits.max_header_line_bytes,
            max_field_size=limits.max_header_line_bytes,
            max_headers=limits.max_headers,
            read_bufsize=UPLOAD_BYTES // 2,
        )
        check(self._server)
        patience = Patience(
            max_connections=limits.max_connections,
            idle_s=limits.keepalive_timeout_s,
            answer_s=limits.answer_timeout_s,
            min_rate=limits.min_rate_bytes,
        )
        self.doorstep = Doorstep(self._server, patience, _FULL, "the listener for clients")
        """Where connections are while they carry nothing."""
        self._handshake_s = min(limits.keepalive_timeout_s, _HANDSHAKE_S)
        self._listening: asyncio.Server | None = None
        self.port = 0
        """The port that is bound, once `start` has returned."""

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
            self.doorstep,
            host,
            port,
            backlog=backlog,
            reuse_port=reuse_port or None,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._handshake_s,
        )
        self.port = self._listening.sockets[0].getsockname()[1]

    async def start_on(self, sock: socket.socket, *, backlog: int = 1024, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a socket that was bound beforehand."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self.doorstep,
            sock=sock,
            backlog=backlog,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else self._handshake_s,
        )
        self.port = sock.getsockname()[1]

    def stop_listening(self) -> None:
        """Accept nobody any more; who is connected stays."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def stop(self, *, patience_s: float = 0.0) -> None:
        """Stop listening; close idle connections now, and the others after `patience_s`."""
        self.stop_listening()
        self.doorstep.close()
        self._server.pre_shutdown()
        # aiohttp takes 0 for "without a limit".
        await self._server.shutdown(max(patience_s, 0.001))
