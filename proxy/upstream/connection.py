"""One connection to an upstream: an asyncio protocol around httptools' parser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import httptools

from proxy.headers import ResponseFields
from proxy.upstream.chunks import single_chunk, whole_chunks
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.known_head import KnownHead
from proxy.upstream.lazy_timer import LazyTimer

if TYPE_CHECKING:
    from proxy.upstream.exchange import Exchange

__all__ = ["MAX_HEAD_BYTES", "Connection"]

MAX_HEAD_BYTES: Final = 64 * 1024
"""An answer's status line and headers may not be longer."""


class Connection:
    """Carries one exchange after another; knows its deadline and whether it may carry another.

    Everything that arrives in one read is handed to the exchange at once, after the parser has seen it all, so
    that a read with ten pieces costs one write and not ten.

    An asyncio protocol in all but its parent: a compiled class has none that is not compiled.
    """

    __slots__ = (
        "_at_chunk",
        "_complete",
        "_drained",
        "_eof",
        "_exchange",
        "_fields",
        "_fresh_head",
        "_head_bytes",
        "_headers",
        "_heard_at",
        "_known",
        "_loop",
        "_on_free",
        "_on_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_reason",
        "_reusable",
        "_sink",
        "_timer",
        "_trailers",
        "_writing_paused",
        "idle_since",
        "retire_at",
        "transport",
        "uploading",
        "uses",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_free: Callable[[Connection], None],
        on_lost: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._on_free = on_free
        self._on_lost = on_lost
        self._exchange: Exchange | None = None
        self._fields: ResponseFields | None = None
        self._known: KnownHead | None = None
        self._parser: Any = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._trailers: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._pieces: list[bytes] = []
        self._head_bytes = 0
        self._fresh_head = False
        self._at_chunk = False
        self._sink: Callable[[bytes, bytes, float], bool] | None = None
        """Takes single chunks, once a stream flows and its deadline is watched."""
        self._heard_at = 0.0
        self._complete = False
        self._reusable = False
        self._eof = False
        self._paused = False
        self._writing_paused = False
        self._drained: asyncio.Future[None] | None = None
        self._timer = LazyTimer(loop, self._due)
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.idle_since = 0.0
        self.retire_at = inf
        """When it has been open for long enough (monotonic seconds)."""
        self.uploading = False
        """Whether more of the request's body is still to be written: then it cannot be reused."""
        self.uses = 0

    # -- what an exchange does with it ---------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether another exchange may start on it."""
        return self._exchange is None and not self._eof and not self.transport.is_closing()

    def start(self, exchange: Exchange, request: bytes, body: bytes, deadline: float) -> None:
        """Send a request; the answer goes to `exchange`, which must come by `deadline` (monotonic seconds)."""
        self._exchange = exchange
        self._at_chunk = False
        self._sink = None
        self._head_bytes = 0
        self._headers = []
        self.uses += 1
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self.set_deadline(deadline)
        if not body:
            self.transport.write(request)
        elif len(body) < 65536:
            self.transport.write(request + body)
        else:
            self.transport.write(request)
            self.transport.write(body)

    def set_deadline(self, when: float) -> None:
        """Fail the exchange with a timeout unless this is moved on before `when`."""
        self._timer.set(when)

    def write(self, data: bytes) -> bool:
        """Send a piece of the request's body. Returns whether the upstream takes more at once."""
        self.transport.write(data)
        return not self._writing_paused

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the upstream takes more, or for `timeout_s`. Returns whether it does."""
        if self._writing_paused and not self.transport.is_closing():
            self._drained = self._loop.create_future()
            await asyncio.wait((self._drained,), timeout=timeout_s)
            self._drained = None
        return not self._writing_paused

    def pause(self) -> None:
        """Take no more from the upstream for now. A connection at rest is never paused: nobody would resume it."""
        if self._exchange is not None and not self._paused and not self._eof and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Take from the upstream again."""
        if self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def leave(self) -> None:
        """Go back to rest without having carried anything."""
        if self.usable:
            self._on_free(self)

    def abort(self) -> None:
        """Close at once, whatever is under way. The exchange hears nothing more."""
        self._exchange = self._sink = None
        self.transport.abort()

    def take_over(self) -> asyncio.Transport:
        """Hand the bare transport to a tunnel; this object is out of the game."""
        self._exchange = None
        self._timer.cancel()
        self._on_lost(self)
        return self.transport

    # -- what the transport calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take note of the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse one read and hand over what it held."""
        exchange = self._exchange
        if exchange is None:
            # Nothing was asked: a server that talks now would answer the next request with it.
            self.transport.abort()
            return
        sink = self._sink
        if sink is not None and (body := single_chunk(data)):
            # One event of a stream that flows: the deadline is worked out when the timer fires.
            self._heard_at = now = monotonic()
            if sink(data, body, now):
                self.pause()
            return
        if self._at_chunk:
            data = self._chunks(exchange, data)
            if not data:
                return
        first = not exchange.heard
        if first and self._known is not None and self._whole(exchange, self._known, data):
            return
        exchange.heard = True
        if not exchange.started:
            # Counts what came before this read, so a short head and a long piece of body in one are no matter.
            if self._head_bytes > MAX_HEAD_BYTES:
                self._fail(UpstreamError(Failure.PROTOCOL, f"header section longer than {MAX_HEAD_BYTES} bytes"))
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(exchange, data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self._deliver(exchange)
            self._fail(UpstreamError(Failure.PROTOCOL, str(error)))
            return
        if first and exchange.fields.chunked and exchange.streaming and not self._complete:
            self._at_chunk = whole_chunks(data, data.find(b"\r\n\r\n") + 4)[0] == len(data)
        elif first:
            self._known = self._learn(exchange, data) if self._complete and self._reusable else None
        self._deliver(exchange)

    def eof_received(self) -> bool:
        """Take note of a clean close, which ends an answer that has no other framing."""
        self._eof = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the exchange, if one is under way."""
        self._timer.cancel()
        self._wake_writer()
        self._on_lost(self)
        exchange = self._exchange
        if exchange is None:
            return
        if exc is None and self._eof and exchange.until_close:
            self._exchange = None
            exchange.on_end([])
            return
        if not exchange.heard and self.uses > 1:
            self._fail(UpstreamError(Failure.STALE, str(exc or "closed")))
        else:
            self._fail(UpstreamError(Failure.RESET, str(exc or "closed before the answer was complete")))

    def pause_writing(self) -> None:
        """The upstream takes the request's body slower than it comes."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """It caught up."""
        self._writing_paused = False
        self._wake_writer()

    # -- what the parser calls -----------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        """Keep the reason phrase."""
        self._reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field; after the head they are trailers."""
        exchange = self._exchange
        if exchange is not None and exchange.started:
            self._trailers.append((name, value))
        else:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the exchange's answer, unless it is an interim one."""
        exchange = self._exchange
        if exchange is None:
            return
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            headers, self._headers = self._headers, []
            exchange.on_interim(status, headers)
            return
        reason, self._reason = self._reason, b""
        headers, fields = self._headers, self._fields
        if fields is None or not fields.same_as(headers):
            fields = self._fields = ResponseFields(headers)
        exchange.on_head(status, reason, headers, fields, self._parser.should_keep_alive())
        self._fresh_head = True
        if exchange.bodiless:
            # llhttp does not know what was asked, so it would wait for the body that a HEAD only describes.
            self._parser_done(exchange)
            self._parser = None

    def on_body(self, data: bytes) -> None:
        """Keep a piece until the whole read is parsed."""
        if self._complete:
            self._reusable = False
            return
        self._pieces.append(data)

    def on_message_complete(self) -> None:
        """End the exchange's answer, unless an interim one ended."""
        exchange = self._exchange
        if exchange is None or not exchange.started or self._complete:
            return
        self._parser_done(exchange)

    # -- inside --------------------------------------------------------------------------------------------

    def _parser_done(self, exchange: Exchange) -> None:
        self._complete = True
        self._reusable = exchange.keep_alive and not self.uploading

    def _chunks(self, exchange: Exchange, data: bytes) -> bytes:
        """Pass whole chunks on as they are, past the parser, which stands before a chunk. Returns what is left."""
        end, pieces = whole_chunks(data)
        data, rest = data[:end], data[end:]
        if pieces:
            self._heard_at = now = monotonic()
            self._timer.set(exchange.next_deadline(now))
            exchange.on_chunks(data, b"".join(pieces), now)
            self._sink = exchange.sink
        if rest:
            self._at_chunk = False
            self._sink = None
        return rest

    def _learn(self, exchange: Exchange, data: bytes) -> KnownHead | None:
        """Remember the head of an answer that came whole in one read, `data`."""
        if exchange.bodiless or self._trailers:
            return None
        return KnownHead.of(
            data, exchange.content_length, exchange.status, exchange.reason, exchange.headers, exchange.fields
        )

    def _whole(self, exchange: Exchange, known: KnownHead, data: bytes) -> bool:
        """Hand over an answer that is all in `data`, if its head is the one before; the parser sees none of it."""
        start = known.repeat.match(data)
        if not start or exchange.bodiless or self.uploading or not exchange.takes(len(data) - start):
            return False
        self._exchange = None
        # Free it first: whoever wakes up may want to use it.
        if self._eof or self.transport.is_closing():
            self.transport.close()
        else:
            if self._paused:
                self.resume()
            self._on_free(self)
        exchange.on_whole(known, data[start:])
        return True

    def _deliver(self, exchange: Exchange) -> None:
        """Hand over what the last read brought: head, pieces, end, in this order."""
        pieces = self._pieces
        if self._fresh_head:
            self._fresh_head = False
            exchange.after_head()
        if self._complete:
            self._complete = False
            self._exchange = None
            data = b"" if not pieces else pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            trailers = self._trailers
            if trailers:
                self._trailers = []
            # Free it first: whoever wakes up may want to use it.
            if self._reusable and not self._eof and not self.transport.is_closing():
                self.resume()
                self._on_free(self)
            else:
                self.transport.close()
            if data:
                exchange.on_data(data)
            exchange.on_end(trailers)
        elif pieces:
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            self._timer.set(exchange.next_deadline(monotonic()))
            exchange.on_data(data)

    def _upgraded(self, exchange: Exchange, rest: bytes) -> None:
        self._fresh_head = False
        if not exchange.started or exchange.status != 101:
            self._fail(UpstreamError(Failure.PROTOCOL, "unexpected upgrade"))
            return
        self.pause()
        exchange.on_upgrade(rest)

    def _fail(self, error: UpstreamError) -> None:
        exchange, self._exchange = self._exchange, None
        self._sink = None
        self.transport.abort()
        if exchange is not None:
            exchange.on_error(error)

    def _due(self) -> None:
        """The deadline may have passed."""
        exchange, timer = self._exchange, self._timer
        if exchange is None:
            return
        if self._sink is not None:
            timer.due = exchange.next_deadline(self._heard_at)
        now = monotonic()
        if now < timer.due:
            timer.set(timer.due)
        elif self._paused and now < exchange.total_deadline:
            # The client is slow, not the upstream; only the total counts.
            timer.set(min(exchange.total_deadline, now + 1.0))
        else:
            self._fail(UpstreamError(exchange.patience_lost()))

    def _wake_writer(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
