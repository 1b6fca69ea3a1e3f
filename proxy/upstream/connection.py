"""One connection to an upstream: it knows where each answer ends, and carries nothing after a byte too many."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from math import inf
from typing import Final

from proxy.http.known_head import KnownHead
from proxy.http.response_fields import ResponseFields
from proxy.now import monotonic
from proxy.upstream.chunked import ChunkedBody
from proxy.upstream.chunks import single_chunk, whole_chunks
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange, Link
from proxy.upstream.head import HeadReader, MalformedError
from proxy.upstream.lazy_timer import LazyTimer

__all__ = ["Connection"]

_UNTIL_CLOSE: Final = -1
_LAST_CHUNK: Final = b"0\r\n\r\n"
_BODY_BEHIND_S: Final = 0.1
"""Some servers answer HEAD with a head and send the body all the same, a moment later: it is waited for."""


class Connection(Link):
    """Carries one exchange after another; knows its deadline and whether it may carry another.

    Everything that arrives in one read is handed to the exchange at once, so that a read with ten pieces costs one
    write and not ten. A byte behind the end of an answer, whether it comes with it, later, or while nothing is asked,
    closes the connection and is otherwise as if it had not come: who said it may not know what it answers.

    An asyncio protocol in all but its parent: a compiled class has none that is not compiled.
    """

    __slots__ = (
        "_chunked",
        "_drained",
        "_eof",
        "_exchange",
        "_fields",
        "_head",
        "_heard_at",
        "_known",
        "_left",
        "_loop",
        "_on_free",
        "_on_lost",
        "_paused",
        "_sink",
        "_timer",
        "_unread",
        "_writing_paused",
        "erred",
        "idle_since",
        "retire_at",
        "transport",
        "unasked",
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
        self._head = HeadReader()
        self._chunked: ChunkedBody | None = None
        """The framing of the present answer's body, where that is chunked."""
        self._left = 0
        """Bytes of the body still to come, where it is not."""
        self._sink: Callable[[bytes, bytes, float], bool] | None = None
        """Takes single chunks, once a stream flows and its deadline is watched."""
        self._heard_at = 0.0
        self._eof = False
        self._unread = False
        """Whether the other side had closed before the request came to it."""
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
        self.erred = False
        """Whether its last answer was an error, behind which a server may close it without having said so."""
        self.unasked = False
        """Whether it has brought a byte that nobody asked for."""

    # -- what an exchange does with it ---------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether another exchange may start on it."""
        return self._exchange is None and not self._eof and not self.transport.is_closing()

    def start(self, exchange: Exchange, request: bytes, body: bytes, deadline: float) -> None:
        """Send a request; the answer goes to `exchange`, which must come by `deadline` (monotonic seconds)."""
        self._exchange = exchange
        self._sink = None
        self._chunked = None
        self._head.begin()
        self.uses += 1
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
            self.unasked = True
            self.transport.abort()
            return
        sink = self._sink
        if sink is not None and (body := single_chunk(data)):
            # One event of a stream that flows: the deadline is worked out when the timer fires.
            self._heard_at = now = monotonic()
            if sink(data, body, now):
                self.pause()
            return
        first = not exchange.heard
        if first and self._known is not None and self._whole(exchange, self._known, data):
            return
        exchange.heard = True
        start = 0
        if not exchange.started:
            try:
                start = self._begin(exchange, data)
            except MalformedError as error:
                self._fail(UpstreamError(Failure.PROTOCOL, str(error), kept=first and self.uses > 1))
                return
            if start < 0:
                return
        if self._chunked is not None:
            self._dechunk(exchange, self._chunked, data, start)
        else:
            self._count(exchange, data, start, first)
        if exchange.held:
            exchange.hold()

    def eof_received(self) -> bool:
        """Take note of a clean close, which ends an answer that has no other framing."""
        self._eof = True
        exchange = self._exchange
        if exchange is not None and not exchange.heard:
            self._unread = _never_arrived(self.transport)
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
            self._fail(UpstreamError(Failure.STALE, str(exc or "closed"), unread=self._unread))
        else:
            detail = str(exc or "closed before the answer was complete")
            self._fail(UpstreamError(Failure.RESET, detail, unread=self._unread))

    def pause_writing(self) -> None:
        """The upstream takes the request's body slower than it comes."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """It caught up."""
        self._writing_paused = False
        self._wake_writer()

    # -- inside --------------------------------------------------------------------------------------------

    def _begin(self, exchange: Exchange, data: bytes) -> int:
        """Read heads. Returns where in `data` the body begins, -1 when it does not. Raises MalformedError."""
        head, at, size = self._head, 0, len(data)
        while at < size:
            at = head.read(data, at)
            if at < 0:
                return -1
            if head.status >= 200 or head.status == 101:
                return self._start_answer(exchange, head, data, at)
            exchange.on_interim(head.status, head.headers)
        return -1

    def _start_answer(self, exchange: Exchange, head: HeadReader, data: bytes, end: int) -> int:
        """Start the exchange's answer, whose head ends at `end`, and find out where its own end is to be."""
        status, headers, fields = head.status, head.headers, self._fields
        if head.switched != (status == 101):
            raise MalformedError("unexpected upgrade" if head.switched else "status 101 without an upgrade")
        if fields is None or not fields.same_as(headers):
            fields = self._fields = ResponseFields(headers)
        if fields.coded:
            # Nobody asked for it, and our own framing could not say that it is there (RFC 9112 section 6.1).
            raise MalformedError("a transfer coding other than chunked")
        exchange.on_head(status, head.reason, headers, fields, head.keep_alive)
        if head.switched:
            self.pause()
            exchange.on_upgrade(data[end:])
            return -1
        length = exchange.content_length
        if exchange.bodiless:
            self._left = 0
        elif fields.chunked:
            self._chunked = ChunkedBody()
        else:
            self._left = _UNTIL_CLOSE if length is None else length
        exchange.after_head()
        return end if self._exchange is exchange else -1

    def _count(self, exchange: Exchange, data: bytes, start: int, first: bool) -> None:
        """Take a read of a body whose length is known, or that closing ends."""
        left, size = self._left, len(data) - start
        if left == _UNTIL_CLOSE or size < left:
            if size:
                if left != _UNTIL_CLOSE:
                    self._left = left - size
                self._timer.set(exchange.next_deadline(monotonic()))
                exchange.on_data(data[start:] if start else data)
            return
        if first:
            self._known = self._learn(exchange, data[:start]) if size == left else None
        self._over(exchange, data[start : start + left] if left else b"", [], behind=size > left)

    def _dechunk(self, exchange: Exchange, chunked: ChunkedBody, data: bytes, start: int) -> None:
        """Take a read of a chunked body: whole chunks as they are, what else there is piece by piece."""
        size = len(data)
        if chunked.between_chunks:
            end, whole = whole_chunks(data, start)
            if whole:
                self._heard_at = now = monotonic()
                self._timer.set(exchange.next_deadline(now))
                framed = data if end - start == size else data[start:end]
                exchange.on_chunks(framed, whole[0] if len(whole) == 1 else b"".join(whole), now)
                if self._exchange is not exchange:
                    return
                start = end
                if end == size:
                    self._sink = exchange.sink
        if start == size:
            return
        self._sink = None
        pieces: list[bytes] = []
        fault = ""
        try:
            chunked.feed(data, start, pieces)
        except MalformedError as error:
            fault = str(error)
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if chunked.over:
            self._over(exchange, body, chunked.trailers, behind=chunked.end < size)
            return
        if body:
            self._timer.set(exchange.next_deadline(monotonic()))
            exchange.on_data(body)
        if fault:
            self._fail(UpstreamError(Failure.PROTOCOL, fault))

    def _learn(self, exchange: Exchange, head: bytes) -> KnownHead | None:
        """Remember the head of an answer that came whole in one read, which began with it and held nothing else."""
        if exchange.bodiless or self._head.interim or not exchange.keep_alive or self.uploading:
            return None
        return KnownHead.of(head, exchange.status, exchange.reason, exchange.headers, exchange.fields)

    def _whole(self, exchange: Exchange, known: KnownHead, data: bytes) -> bool:
        """Hand over an answer that is all in `data`, if its head is the one before; the parser sees none of it."""
        start = known.repeat.match(data)
        if not start or exchange.bodiless or self.uploading or not exchange.takes(len(data) - start):
            return False
        self._rest(known.status)
        exchange.on_whole(known, data[start:])
        return True

    def _over(self, exchange: Exchange, body: bytes, trailers: list[tuple[bytes, bytes]], *, behind: bool) -> None:
        """End an answer with the last piece of its `body`; `behind` says whether anything came behind it."""
        self.unasked = behind
        if exchange.keep_alive and not behind and not self.uploading:
            self._head.settle(body if self._chunked is None and not exchange.fields.chunked else _LAST_CHUNK)
            if exchange.bodiless and (exchange.content_length or exchange.fields.chunked):
                self._exchange = self._sink = None
                self._loop.call_later(_BODY_BEHIND_S, self.leave)
            else:
                self._rest(exchange.status)
        else:
            self._exchange = self._sink = None
            self.transport.close()
        if body:
            exchange.on_data(body)
        exchange.on_end(trailers)

    def _rest(self, status: int) -> None:
        """Be free before anybody hears of the end of an answer: whoever wakes up may want to use it."""
        self.erred = status >= 400
        self._exchange = self._sink = None
        if self._eof or self.transport.is_closing():
            self.transport.close()
        else:
            if self._paused:
                self.resume()
            self._on_free(self)

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


def _never_arrived(transport: asyncio.Transport) -> bool:
    """Tell whether what was sent met a door that had been closed: it was answered with a reset, or by nothing at all.

    Asked when the other side has closed. One that read the request and died has acknowledged it; where the system
    does not tell (Linux alone does), it may have.
    """
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (AttributeError, OSError):
        return False
    # struct tcp_info: the state, seven more bytes, and four numbers before the segments not acknowledged.
    return bool(info[0] == _TCP_CLOSE or int.from_bytes(info[24:28], sys.byteorder))


_TCP_INFO_BYTES: Final = 104
_TCP_CLOSE: Final = 7
