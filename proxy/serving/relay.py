"""An answer on its way to the client: byte for byte, from the upstream's callback to the client's transport."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final, Protocol

from proxy.http.fields import RawHeaders, lines_of
from proxy.http.trailers import passable
from proxy.now import monotonic
from proxy.request import Ticket
from proxy.upstream.exchange import Exchange
from proxy.wire.base import Tap
from proxy.wire.judging import misses_end

__all__ = ["Client", "Framing", "Relay", "chunked_body", "reset"]


_READ_TOGETHER: Final = 8
"""So many pieces the tap reads at once, which costs little more than one; a stream holds no more than these back."""
_MUCH: Final = 4096
"""A piece of so many bytes is not kept for that."""

_NO_LINGER = struct.pack("ii", 1, 0)


class Client(Protocol):
    """The client's connection, as aiohttp's server protocol offers it."""

    slow: bool
    """Whether the client takes no more for now."""


class Framing:
    """How the client is told where the body ends."""

    LENGTH: Final = 0
    """By Content-Length."""
    CHUNKED: Final = 1
    CLOSE: Final = 2
    """By closing the connection: HTTP/1.0."""


class Relay:
    """Writes pieces to the client as they come and wakes the handler only at the end, or when the client is slow.

    A body that stays incomplete never ends cleanly: the client gets the protocol's own error event where that can
    be understood, and then a connection that closes without the last chunk.
    """

    __slots__ = (
        "_began",
        "_chunked",
        "_client",
        "_closes",
        "_error_frame",
        "_loop",
        "_marked",
        "_ticket",
        "_transport",
        "_unread",
        "_waiter",
        "_watch",
        "broken",
        "done",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: Client,
        transport: asyncio.Transport,
        framing: int,
        ticket: Ticket,
        marked: bool,
        error_frame: Callable[[Exchange], bytes] | None,
        began: Callable[[float], None] | None = None,
        watch: Tap | None = None,
    ) -> None:
        self._loop = loop
        self._client = client
        self._transport = transport
        self._chunked = framing == Framing.CHUNKED
        self._closes = framing == Framing.CLOSE
        self._ticket = ticket
        """Is told when the first piece and the last went out; its tap reads them."""
        self._marked = marked
        self._unread: list[bytes] = []
        self._error_frame = error_frame
        self._began = began
        """Is told when the first piece goes out (monotonic seconds)."""
        self._watch = watch
        """Reads each piece at once: what somebody else may ask for before this answer is over."""
        self._waiter: asyncio.Future[None] | None = None
        self.done = False
        self.broken = False
        """Whether the answer ended before it was complete."""

    def piece(self, data: bytes) -> bool:
        """Pass a piece on. Returns whether the client asks for a pause."""
        return self.chunks(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data, data, monotonic())

    def chunks(self, framed: bytes, data: bytes, now: float) -> bool:
        """Pass on a piece that is already framed as the client wants it, if it wants chunks."""
        transport = self._transport
        if transport.is_closing():
            return False
        if self._watch is not None:
            # Whoever reads it may ask for it at once, and of another process.
            self._watch.feed(data)
        transport.write(framed if self._chunked else data)
        ticket = self._ticket
        ticket.last_byte = now
        if ticket.first_byte is None:
            ticket.first_byte = now
            if self._began is not None:
                self._began(now)
        unread = self._unread
        unread.append(data)
        if len(unread) == _READ_TOGETHER or len(data) > _MUCH:
            self.read()
        if self._client.slow:
            self._wake()
            return True
        return False

    def read(self) -> None:
        """Show the tap what has been passed on since it looked last."""
        unread = self._unread
        if unread:
            tap = self._ticket.tap
            if tap is not None:
                tap.feed(unread[0] if len(unread) == 1 else b"".join(unread))
            unread.clear()

    def ended(self, exchange: Exchange) -> None:
        """End the body, or make plain that it has no end."""
        self.done = True
        self.read()
        transport = self._transport
        if exchange.error is None and not self._cut_short(exchange):
            if self._chunked and not transport.is_closing():
                transport.write(_last_chunk(exchange.trailers))
        else:
            self.broken = True
            self._break(exchange)
        self._wake()

    @property
    def last_byte(self) -> float | None:
        """When the latest piece went out (monotonic seconds)."""
        return self._ticket.last_byte

    @property
    def between_events(self) -> bool:
        """Whether a comment may be put in now."""
        self.read()
        tap = self._ticket.tap
        return not self.done and not self._client.slow and self._chunked and tap is not None and tap.at_boundary()

    async def finish(self, exchange: Exchange, drain: Callable[[], object]) -> None:
        """Wait until everything has been passed on; meanwhile hold the upstream back for a slow client."""
        while not self.done:
            self._waiter = self._loop.create_future()
            await self._waiter
            while self._client.slow and not self.done:
                await drain()  # type: ignore[misc]
            exchange.resume()

    def _cut_short(self, exchange: Exchange) -> bool:
        """Tell whether an event stream that only closing ends stopped before its protocol's own end mark."""
        tap = self._ticket.tap
        if tap is None or not exchange.until_close or not exchange.fields.is_event_stream or exchange.fields.encoded:
            return False
        return misses_end(tap, marked=self._marked, usual=False, until_close=True)

    def _break(self, exchange: Exchange) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        if self._chunked and self._error_frame is not None:
            # Inside a half-sent event it would be taken for the rest of it, and after the end mark it is too late.
            tap = self._ticket.tap
            wanted = tap is None or (tap.at_boundary() and not tap.finished())
            frame = self._error_frame(exchange) if wanted else b""
            if frame:
                transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
        if self._closes:
            reset(transport)
        else:
            transport.close()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection so that its end cannot be taken for the end of a body: by a reset."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


def chunked_body(body: bytes, trailers: RawHeaders) -> bytes:
    """Return a whole body in chunked framing."""
    return (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + _last_chunk(trailers)


def _last_chunk(trailers: RawHeaders) -> bytes:
    return b"0\r\n\r\n" if not trailers else b"0\r\n%b\r\n" % lines_of(passable(trailers))
