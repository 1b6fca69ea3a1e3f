"""A client's request as aiohttp hands it over, and the checks that stand before everything else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import HttpVersion10, HttpVersion11, web

from proxy.headers import RequestFields
from proxy.outcome import BadInput, BodyTooLarge, ExpectationFailed, HeadersTooLarge, Refused, SlowClient

__all__ = ["Incoming", "Limits"]

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ESTABLISHED = 1
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Limits:
    """What a client may send (bytes, counts, seconds)."""

    __slots__ = ("body_timeout_s", "max_body_bytes", "max_header_bytes")

    def __init__(
        self,
        *,
        max_body_bytes: int = 33_554_432,
        max_header_bytes: int = 65_536,
        body_timeout_s: float = 60.0,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_header_bytes = max_header_bytes
        self.body_timeout_s = body_timeout_s


class Incoming:
    """One request: its head checked, its body read whole or piece by piece. Raises Refused."""

    __slots__ = ("_content", "_limits", "_request", "fields", "http11", "keep_alive", "method", "target", "transport")

    def __init__(self, request: web.BaseRequest, transport: asyncio.Transport, limits: Limits) -> None:
        self._request = request
        self._limits = limits
        self._content: Any = request.content
        self.transport = transport
        self.method: str = request.method
        self.target: str = request.raw_path
        self.http11: bool = request.version >= HttpVersion11
        self.keep_alive: bool = self.http11 and request.keep_alive
        self.fields = RequestFields(request.raw_headers)

    def check(self) -> None:
        """Refuse what could be read in two ways (RFC 9112 sections 3.2 and 6.1)."""
        fields = self.fields
        if self._request.version < HttpVersion10:
            raise Refused(BadInput("HTTP/0.9 is not understood."))
        if fields.hosts != 1 and (self.http11 or fields.hosts > 1):
            raise Refused(BadInput("A request must have exactly one Host field."))
        if fields.get(b"transfer-encoding") is not None:
            coding = fields.get(b"transfer-encoding") or b""
            if not self.http11:
                raise Refused(BadInput("HTTP/1.0 knows no Transfer-Encoding."))
            if fields.get(b"content-length") is not None:
                raise Refused(BadInput("Content-Length and Transfer-Encoding exclude each other."))
            if coding.strip().lower() != b"chunked":
                raise Refused(BadInput("The only Transfer-Encoding understood is chunked."))
        expect = fields.get(b"expect")
        if expect is not None and self.http11 and expect.strip().lower() != b"100-continue":
            raise Refused(ExpectationFailed())
        if self.target[:1] != "/":
            self._origin_form()
        headers = self._request.raw_headers
        if len(headers) > 16:
            size = sum([len(name) + len(value) + 4 for name, value in headers])
            if size > self._limits.max_header_bytes:
                raise Refused(HeadersTooLarge())

    def _origin_form(self) -> None:
        """Bring an absolute target into origin form; its authority must be the Host's (RFC 9112 section 3.2.2)."""
        if self.method == "CONNECT":
            raise Refused(BadInput("CONNECT is not for reverse proxies.", code="method_not_allowed"))
        if self.target == "*" and self.method == "OPTIONS":
            return
        scheme, separator, rest = self.target.partition("://")
        authority, slash, path = rest.partition("/")
        if not separator or scheme.lower() not in ("http", "https"):
            raise Refused(BadInput("The request target is neither a path nor a URL."))
        host = self.fields.text(b"host") or ""
        if authority.lower() != host.lower():
            raise Refused(BadInput("The Host field and the request target name different hosts."))
        self.target = slash + path or "/"

    @property
    def path(self) -> str:
        """The decoded path."""
        return self._request.path

    @property
    def peer(self) -> str:
        """The client's address."""
        name = self._request.protocol.peername
        return name[0] if isinstance(name, tuple) else ""

    @property
    def scheme(self) -> str:
        """The scheme the client used."""
        return "http" if self._request.protocol.ssl_context is None else "https"

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived (or there is none)."""
        return bool(self._content.is_eof())

    @property
    def length(self) -> int | None:
        """The declared length of the body; None when it is chunked or there is none."""
        value = self.fields.get(b"content-length")
        return None if value is None else int(value)

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 before it sends the body."""
        return self.http11 and self.fields.get(b"expect") is not None and not self.complete

    @property
    def wants_websocket(self) -> bool:
        """Whether the client asks to switch to the WebSocket protocol; no other is passed on."""
        fields = self.fields
        upgrade = fields.get(b"upgrade")
        if upgrade is None or not fields.named or b"upgrade" not in fields.named:
            return False
        return self.http11 and self.method == "GET" and upgrade.strip().lower() == b"websocket"

    def body_now(self) -> bytes:
        """Return the body, which must be `complete`."""
        data: bytes = self._content.read_nowait(-1)
        return data

    async def body(self) -> bytes:
        """Read the whole body."""
        limit = self._limits.max_body_bytes
        if self.complete:
            data = self.body_now()
            if len(data) > limit:
                raise Refused(BodyTooLarge(limit))
            return data
        length = self.length
        if length is not None and length > limit:
            raise Refused(BodyTooLarge(limit))
        pieces: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise Refused(BodyTooLarge(limit))
            pieces.append(piece)
        return b"".join(pieces)

    def gone(self) -> bool:
        """Whether the client closed its connection, though its body is not being read (Linux only)."""
        sock = self.transport.get_extra_info("socket")
        if sock is None or _TCP_INFO is None or self.transport.is_closing():
            return self.transport.is_closing()
        state: int = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 8)[0]
        return state != _ESTABLISHED

    async def pieces(self) -> AsyncIterator[bytes]:
        """Read the body piece by piece, no faster than it is consumed. Has no size limit."""
        if self.expects_continue:
            self.transport.write(_CONTINUE)
        content, patience = self._content, self._limits.body_timeout_s
        while True:
            try:
                async with asyncio.timeout(patience):
                    piece = await content.readany()
            except TimeoutError:
                raise Refused(SlowClient()) from None
            except web.RequestPayloadError as error:
                raise Refused(BadInput(f"The request body is malformed: {error}")) from None
            if not piece:
                return
            yield piece
