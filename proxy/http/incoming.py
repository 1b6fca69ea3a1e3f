"""A client's request as aiohttp hands it over, and the checks that stand before everything else."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiohttp import HttpVersion10, HttpVersion11
from aiohttp.web_protocol import PayloadAccessError

from proxy.http.gathered import Gathered
from proxy.http.held import Held
from proxy.http.request_fields import RequestFields
from proxy.http.target import has_dot_segments, is_authority, matched_path, same_authority
from proxy.http.trailers import TrailerScanner
from proxy.http.upload import Begun, pieces
from proxy.outcome import BadInput, BodyTooLarge, ExpectationFailed, HeadersTooLarge, Refused
from proxy.wire.base import Head

__all__ = ["Incoming", "Limits", "Opening"]

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
_ESTABLISHED: Final = 1
_JOINED_APART: Final = 4_194_304
"""A body of so many bytes is put together outside of the loop."""


class Limits:
    """What a client may send (bytes, counts, seconds)."""

    __slots__ = (
        "body_timeout_s",
        "max_body_bytes",
        "max_header_bytes",
        "max_held_bytes",
        "max_json_values",
        "min_rate_bytes",
    )

    def __init__(
        self,
        *,
        max_body_bytes: int = 33_554_432,
        max_header_bytes: int = 65_536,
        body_timeout_s: float = 60.0,
        min_rate_bytes: int = 500,
        max_held_bytes: int = 1 << 32,
        max_json_values: int = 10_000_000,
    ) -> None:
        self.max_body_bytes = max_body_bytes
        self.max_header_bytes = max_header_bytes
        self.body_timeout_s = body_timeout_s
        self.min_rate_bytes = min_rate_bytes
        """Bytes a second of its body that a client must send, beside that patience."""
        self.max_held_bytes = max_held_bytes
        """Of all requests together."""
        self.max_json_values = max_json_values


class Opening:
    """A request's head, read once for all the requests of a connection that begin with the same bytes."""

    __slots__ = (
        "fields",
        "head",
        "http11",
        "keep_alive",
        "length",
        "method",
        "path",
        "plain",
        "raw",
        "target",
        "version",
    )

    def __init__(self, message: Any, protocol: Any) -> None:
        """Read the RawRequestMessage of aiohttp's parser; the compiled parser's has no ancestor in common with it."""
        raw = message.raw_headers
        fields: RequestFields | None = protocol.seen
        if fields is None or not fields.same_as(raw):
            fields = protocol.seen = RequestFields(raw)
        self.raw = raw
        self.fields = fields
        self.head: Head | None = None
        """What wire formats are shown of it, once it is asked for."""
        self.version = message.version
        self.method: str = message.method
        self.target: str = message.path
        self.plain = (
            self.target[:1] == "/"
            and "#" not in self.target
            and self.method != "CONNECT"
            and not has_dot_segments(self.target)
        )
        """Whether the target is a path, as it should be, and means the same to everybody."""
        self.path = matched_path(self.target)
        """By which it is matched: decoded, without the query."""
        self.http11: bool = message.version >= HttpVersion11
        self.keep_alive: bool = self.http11 and not message.should_close
        self.length = fields.length_of(raw)
        """The declared length of the body; None when it is chunked or there is none. Only of the first of them."""


class Incoming:
    """One request: its head checked, its body read whole or piece by piece. Raises Refused.

    Takes the place of aiohttp's own request objects, of which we need little; what aiohttp asks of them is in
    `_cancel` and `_finish`. `content` is aiohttp's stream of the body, or the body itself.
    """

    __slots__ = (
        "_opening",
        "begun",
        "content",
        "fields",
        "held",
        "http11",
        "keep_alive",
        "length",
        "method",
        "payload",
        "protocol",
        "scanner",
        "target",
    )

    def __init__(self, opening: Opening, content: Any, protocol: Any) -> None:
        self._opening = opening
        self.content = content
        """What has not been read of it."""
        self.payload: Any = None if type(content) is bytes else content
        """aiohttp's stream of the body, if there is one."""
        self.fields = opening.fields
        self.protocol = protocol
        self.method = opening.method
        self.target = opening.target
        self.http11 = opening.http11
        self.keep_alive = opening.keep_alive
        self.scanner: TrailerScanner | None = None
        """Looks for the trailer fields of this request; None where it has announced none."""
        self.held = 0
        """Bytes of the body that are counted as held in memory."""
        self.begun: Begun | None = None
        """What of a form was read before it goes on, to find its model."""
        self.length = len(content) if self.payload is None else opening.length
        """The declared length of the body; None when it is chunked or there is none."""

    @property
    def whole(self) -> bool:
        """Whether the body came together with the head, so that aiohttp keeps no stream for it."""
        return self.payload is None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's connection; None once it is lost."""
        transport: asyncio.Transport | None = self.protocol.transport
        return transport

    def refresh_fields(self) -> RequestFields:
        """Sort the fields anew, forgetting what was found out about them, and return them."""
        self.fields = self._opening.fields = self.protocol.seen = RequestFields(self.fields.raw)
        return self.fields

    def close(self) -> bool:
        """Let nobody read the body any more. Returns whether all of it has come."""
        payload = self.payload
        if payload is None:
            return True
        complete = bool(payload.is_eof())
        if complete:
            payload.set_exception(PayloadAccessError())
        return complete

    def _cancel(self, error: BaseException) -> None:
        """The client left: whoever reads the body is to know."""
        if type(self.content) is not bytes:
            self.content.set_exception(error)

    def _finish(self) -> None:
        """The answer has been written."""

    def check(self, limits: Limits) -> None:
        """Refuse what could be read in two ways (RFC 9112 sections 3.2 and 6.1)."""
        if not self.fields.checked or not self.http11:
            self._check_fields(limits.max_header_bytes)
        if not self._opening.plain:
            self._origin_form()

    def _check_fields(self, max_bytes: int) -> None:
        fields = self.fields
        if self._opening.version < HttpVersion10:
            raise Refused(BadInput("HTTP/0.9 is not understood."))
        if fields.hosts != 1 and (self.http11 or fields.hosts > 1):
            raise Refused(BadInput("A request must have exactly one Host field."))
        if fields.hosts and not is_authority(fields.text(b"host") or ""):
            raise Refused(BadInput("The Host field is neither a name nor an address, with or without a port."))
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            if not self.http11:
                raise Refused(BadInput("HTTP/1.0 knows no Transfer-Encoding."))
            if fields.has_length:
                raise Refused(BadInput("Content-Length and Transfer-Encoding exclude each other."))
            if coding.strip().lower() != b"chunked":
                raise Refused(BadInput("The only Transfer-Encoding understood is chunked."))
        expect = fields.get(b"expect")
        if expect is not None and self.http11 and expect.strip().lower() != b"100-continue":
            raise Refused(ExpectationFailed())
        if sum([len(name) + len(value) + 4 for name, value in self._opening.raw]) > max_bytes:
            raise Refused(HeadersTooLarge())
        fields.checked = self.http11

    def _origin_form(self) -> None:
        """Bring an absolute target into origin form; its authority must be the Host's (RFC 9112 section 3.2.2)."""
        if self.method == "CONNECT":
            raise Refused(BadInput("CONNECT is not for reverse proxies.", code="method_not_allowed"))
        if "#" in self.target:
            # Servers cut it off: what we took for another path would be this one.
            raise Refused(BadInput("A request target has no fragment; write # as %23."))
        if has_dot_segments(self.target):
            # Some servers resolve them and some do not, so what was matched might not be what is asked.
            raise Refused(BadInput("A request target has no segments . and .. in its path.", code="bad_path"))
        if self.target[:1] == "/":
            return
        if self.target == "*" and self.method == "OPTIONS":
            return
        scheme, separator, rest = self.target.partition("://")
        ends = [at for at in (rest.find("/"), rest.find("?")) if at >= 0]
        authority = rest[: min(ends, default=len(rest))]
        after = rest[len(authority) :]
        if not separator or scheme.lower() not in ("http", "https"):
            raise Refused(BadInput("The request target is neither a path nor a URL."))
        host = self.fields.text(b"host") or ""
        if not same_authority(authority, host, scheme.lower()):
            raise Refused(BadInput("The Host field and the request target name different hosts."))
        self.target = after if after.startswith("/") else f"/{after}"

    @property
    def path(self) -> str:
        """The path by which it is matched."""
        opening = self._opening
        if self.target is opening.target:
            return opening.path
        return matched_path(self.target)

    @property
    def head(self) -> Head:
        """What wire formats are shown of it; requests that begin with the same bytes share one."""
        opening, fields, target = self._opening, self.fields, self.target
        head = opening.head
        if head is None or head.target is not target or head.headers is not fields.forwarded:
            head = opening.head = Head(self.method, self.path, target, fields.forwarded)
        return head

    @property
    def peer(self) -> str:
        """The client's address."""
        name = self.protocol.peername
        return name[0] if isinstance(name, tuple) else ""

    @property
    def scheme(self) -> str:
        """The scheme the client used."""
        return "http" if self.protocol.ssl_context is None else "https"

    @property
    def complete(self) -> bool:
        """Whether the whole body has arrived (or there is none)."""
        content = self.content
        return type(content) is bytes or bool(content.is_eof())

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

    @property
    def announced_trailers(self) -> bytes | None:
        """The names of the trailer fields that are to come behind the body; None where none are."""
        return self.fields.get(b"trailer") if self.fields.get(b"transfer-encoding") is not None else None

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The trailer fields that may go on, once the body has been read."""
        return [] if self.scanner is None else self.scanner.fields

    async def drain(self) -> None:
        """Wait until the client takes more."""
        await self.protocol._drain_helper()

    def body_now(self) -> bytes:
        """Return the body, which must be `complete`."""
        content = self.content
        if type(content) is bytes:
            self.content = b""
            return content
        data: bytes = content.read_nowait(-1)
        return data

    def hold(self, book: Held, size: int) -> None:
        """Count `size` bytes of the body as held, until the request is over. Raises Refused."""
        book.take(size)
        self.held += size

    def put_back(self, body: bytes) -> None:
        """Let a body that was read be read again, for another try."""
        self.content = body

    async def body(self, limits: Limits, hold: Callable[[int], None], joining: asyncio.Lock) -> bytes:
        """Read the whole body; `hold` is told of what has come, and may refuse it.

        `joining` is held while a large one is put together, so that there is one at a time.
        """
        limit = limits.max_body_bytes
        if self.complete:
            data = self.body_now()
            if len(data) > limit:
                raise Refused(BodyTooLarge(limit))
            hold(len(data))
            return data
        length = self.length
        if length is not None and length > limit:
            raise Refused(BodyTooLarge(limit))
        parts = Gathered()
        async for piece in pieces(self, limits.body_timeout_s, limits.min_rate_bytes):
            if parts.size + len(piece) > limit:
                raise Refused(BodyTooLarge(limit))
            hold(len(piece))
            parts.add(piece)
        if parts.size < _JOINED_APART:
            return parts.joined()
        async with joining:
            # Copying megabytes takes its time, for which this gives up the interpreter's lock.
            return await asyncio.to_thread(parts.joined)

    async def await_body(self, limits: Limits, book: Held, joining: asyncio.Lock) -> bytes:
        """Read the whole body, count it as held, and leave it to be read again. Raises Refused."""
        body = await self.body(limits, partial(self.hold, book), joining)
        self.put_back(body)
        return body

    def gone(self) -> bool:
        """Whether the client closed its connection, though its body is not being read (Linux only)."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        sock = transport.get_extra_info("socket")
        if sock is None or _TCP_INFO is None:
            return False
        state: int = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 8)[0]
        return state != _ESTABLISHED
