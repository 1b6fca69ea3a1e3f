"""One request to an upstream and its answer, as the connection delivers it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from http import HTTPStatus
from typing import Final, Protocol

from proxy.http.fields import RawHeaders
from proxy.http.known_head import KnownHead
from proxy.http.response_fields import ResponseFields
from proxy.now import monotonic
from proxy.upstream.address import Address
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.location import relocated
from proxy.wire.base import Tap
from proxy.wire.faults import LARGEST_ERROR, Fault
from proxy.wire.judging import first_event

__all__ = ["Exchange", "Patience", "Reader"]

HIGH_WATER: Final = 64 * 1024
"""With more than this unread, nothing more is taken from the upstream."""
FIRST_EVENT_S: Final = 0.5
"""For so long at most the head of an answer is held back until it is known whether it begins with an error."""
WHOLE_LIMIT: Final = 256 * 1024
"""Answers whose declared length is at most this are waited for whole: one wake-up instead of two."""
_BODILESS: Final = frozenset({204, 304})
"""Answers that never have a body (RFC 9112 section 6.3)."""


EXPECTS_ANYTHING: Final = 0
EXPECTS_WHOLE: Final = 1
"""A document."""
EXPECTS_STREAM: Final = 2
"""A stream of events."""


class Reader(Protocol):
    """Takes the pieces of an answer straight from the connection's callback."""

    def piece(self, data: bytes) -> bool:
        """Take the next piece; True when no more should come until `Exchange.resume`."""
        ...

    def chunks(self, framed: bytes, data: bytes, now: float) -> bool:
        """Take the next piece `data` as `framed`, whole chunks; `now` is the time. Returns what `piece` does."""
        ...

    def ended(self, exchange: Exchange) -> None:
        """The answer is over: `exchange.error` says whether it is complete."""
        ...


class Patience:
    """How long an upstream may take over each step of one call, in seconds."""

    __slots__ = ("between_s", "connect_s", "first_byte_s")

    def __init__(self, connect_s: float, first_byte_s: float, between_s: float) -> None:
        self.connect_s = connect_s
        self.first_byte_s = first_byte_s
        self.between_s = between_s


class Link(ABC):
    """What an exchange runs over: a connection, as far as it is an exchange's business."""

    __slots__ = ()

    @abstractmethod
    def start(self, exchange: Exchange, request: bytes, body: bytes, deadline: float) -> None:
        """Send a request; the answer goes to `exchange`, which must come by `deadline` (monotonic seconds)."""

    @abstractmethod
    def pause(self) -> None:
        """Take no more from the upstream for now."""

    @abstractmethod
    def resume(self) -> None:
        """Take from the upstream again."""

    @abstractmethod
    def abort(self) -> None:
        """Close at once, whatever is under way. The exchange hears nothing more."""

    @abstractmethod
    def take_over(self) -> asyncio.Transport:
        """Hand the bare transport to a tunnel."""


class Exchange:
    """Gathers an answer until somebody reads it; once a `Reader` is attached, pieces go straight to it.

    `wait` returns when there is something to act on: the whole of a short answer of known length, the head of
    any other, or the error that took its place. Nothing is ever raised into a future that nobody may await.
    """

    __slots__ = (
        "_between_s",
        "_buffered",
        "_connection",
        "_continued",
        "_first_byte_s",
        "_holding",
        "_known",
        "_limit",
        "_loop",
        "_parts",
        "_reader",
        "_ready",
        "_waiter",
        "bodiless",
        "companion",
        "content_length",
        "ended",
        "error",
        "expects",
        "fault",
        "fields",
        "flows",
        "gather",
        "headers",
        "heard",
        "held",
        "keep_alive",
        "looked_at",
        "reason",
        "sent_at",
        "started",
        "status",
        "tap",
        "told",
        "total_deadline",
        "trailers",
        "until_close",
        "upgrade_rest",
        "upstream",
        "watcher",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        between_s: float,
        total_deadline: float,
        *,
        head_request: bool = False,
        gather: bool = False,
        limit: int = 1 << 62,
    ) -> None:
        self._loop = loop
        self._between_s = between_s
        self._limit = limit
        self._connection: Link | None = None
        self._parts: list[bytes] = []
        self._buffered = 0
        self._ready = False
        self._reader: Reader | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._continued = False
        self._first_byte_s = 0.0
        self._known: KnownHead | None = None
        self.held = False
        """Whether the head has come, and nobody is told of it before the beginning of the body is there."""
        self._holding: asyncio.TimerHandle | None = None
        self.expects = EXPECTS_ANYTHING
        """What is expected, as far as that is known; then its beginning is waited for, to see whether it is that."""
        self.looked_at = False
        """Whether somebody has looked for an error in it."""
        self.told: Fault | None = None
        """The error that it holds, or what it lacks, although its status says that all is well."""
        self.tap: Tap | None = None
        """Who has read the whole of it already."""
        self.watcher: Callable[[], None] | None = None
        """Called once, in place of waking whoever awaits `wait`. It must not raise."""
        self.companion: asyncio.Task[None] | None = None
        """Still sends the request's body; ends with the exchange."""
        self.fault: Exception | None = None
        """What broke on the client's side while its body was being sent."""
        self.total_deadline = total_deadline
        """Monotonic seconds by which the answer must be complete."""
        self.gather = gather
        """Whether the whole answer is wanted in memory, however long it is, up to `limit` bytes."""
        self.bodiless = head_request
        """Whether the answer has no body whatever its fields say: to HEAD, and by its status."""
        self.heard = False
        """Whether any byte has come back."""
        self.started = False
        """Whether the final head has come."""
        self.flows = False
        """Whether any byte of its body has come."""
        self.ended = False
        self.sent_at = 0.0
        """When the request was sent (monotonic seconds)."""
        self.error: UpstreamError | None = None
        self.status = 0
        self.reason = b""
        self.fields: ResponseFields = _NO_FIELDS
        """What the head says; shared with other answers, so without Content-Length and Date."""
        self.headers: RawHeaders = ()
        self.content_length: int | None = None
        self.keep_alive = False
        self.until_close = False
        """Whether only the closing of the connection ends the body."""
        self.trailers: RawHeaders = ()
        self.upstream: Address | None = None
        """Who answered, where the answer may say where something is."""
        self.upgrade_rest: bytes | None = None
        """After 101: what had already come of the other protocol."""

    # -- for whoever wants the answer ----------------------------------------------------------------------

    def send(self, connection: Link, head: bytes, body: bytes, first_byte_s: float) -> None:
        """Send the request over `connection`."""
        self._connection = connection
        self._first_byte_s = first_byte_s
        now = self.sent_at = monotonic()
        connection.start(self, head, body, min(now + first_byte_s, self.total_deadline))

    @property
    def connection(self) -> Link:
        """The connection the exchange runs over. Only while it runs."""
        assert self._connection is not None
        return self._connection

    @property
    def streaming(self) -> bool:
        """Whether the head has come and more is to come."""
        return self.started and not self.ended

    async def wait(self) -> None:
        """Wait until the answer can be acted on; then `error`, or `started` and perhaps `ended`, are set."""
        while not self._ready:
            # An interim answer wakes too, and is none to act on.
            self._waiter = self._loop.create_future()
            await self._waiter

    async def wait_continue(self, timeout_s: float) -> bool:
        """Wait for `100 Continue`; False when something else came or nothing did within `timeout_s`."""
        if not (self._continued or self._ready):
            self._waiter = self._loop.create_future()
            await asyncio.wait((self._waiter,), timeout=timeout_s)
            self._waiter = None
        return self._continued and not self._ready

    @property
    def lines(self) -> bytes:
        """The end-to-end lines of the head, each ended by CRLF."""
        lines = self.fields.lines(self.headers) if self._known is None else self._known.lines
        return lines if self.upstream is None else relocated(lines, self.upstream)

    @property
    def date(self) -> bytes | None:
        """When the answer says that it was made; None where that is not known."""
        if self._known is not None:
            return None
        return next((value for name, value in self.headers if name.lower() == b"date"), None)

    def peek(self) -> bytes:
        """Return what has been gathered so far."""
        parts = self._parts
        if len(parts) > 1:
            parts[:] = [b"".join(parts)]
        return parts[0] if parts else b""

    def become(self, fault: Fault, body: bytes) -> None:
        """Take the status of the error that it holds; a stream that begins with one becomes `body`."""
        self.status = fault.status
        try:
            self.reason = HTTPStatus(fault.status).phrase.encode("ascii")
        except ValueError:
            self.reason = b""
        kept = [field for field in self.fields.fields if field[0].lower() not in _OF_THE_STREAM]
        self.headers = (*kept, (b"Content-Type", b"application/json"), (b"X-Trimtab-Reason", b"error_in_answer"))
        self.fields = ResponseFields(self.headers)
        self._known = None
        if not self.ended:
            self.ended = True
            self.watcher = None
            if self._connection is not None:
                self._connection.abort()
                self._connection = None
            self._dismiss()
        self._parts = [body]
        self._buffered = self.content_length = len(body)
        self.until_close = False
        self.trailers = ()

    def take(self) -> bytes:
        """Return what has been gathered so far and forget it."""
        parts = self._parts
        if not parts:
            return b""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        self._buffered = 0
        return data

    def attach(self, reader: Reader) -> None:
        """Send every further piece straight to `reader`. What was gathered before is for `take`."""
        self._reader = reader
        if not self.ended and self._connection is not None:
            self._connection.resume()

    def resume(self) -> None:
        """Let the upstream go on after a reader asked for a pause."""
        if not self.ended and self._connection is not None:
            self._connection.resume()

    def abort(self) -> None:
        """Give up: close the connection at once unless the answer is complete."""
        if not self.ended:
            self.ended = True
            self.watcher = None
            if self._connection is not None:
                self._connection.abort()
            if self.error is None:
                self.error = UpstreamError(Failure.RESET, "given up")
            self._dismiss()

    def abort_with(self, fault: Exception) -> None:
        """Give up because the client's side broke; whoever waits finds `fault`."""
        if not self.ended:
            self.fault = fault
            if self._connection is not None:
                self._connection.abort()
            self.error = UpstreamError(Failure.RESET, f"the request's body broke off: {fault}")
            self._end()

    # -- what the connection calls -------------------------------------------------------------------------

    def on_interim(self, status: int, headers: RawHeaders) -> None:
        """Take note of an interim answer; only 100 matters here."""
        if status == 100:
            self._continued = True
            self._wake()

    def on_head(
        self, status: int, reason: bytes, headers: RawHeaders, fields: ResponseFields, keep_alive: bool
    ) -> None:
        """Take the final head."""
        self.started = True
        self.status = status
        self.reason = reason
        self.headers = headers
        self.fields = fields
        if status in _BODILESS:
            self.bodiless = True
        length = self.content_length = fields.length_of(headers) if status != 204 else None
        self.until_close = length is None and not fields.chunked and not self.bodiless
        self.keep_alive = keep_alive

    def takes(self, size: int) -> bool:
        """Whether a body of `size` bytes may be handed over whole."""
        return size <= self._limit and (self.gather or size <= WHOLE_LIMIT)

    def on_whole(self, known: KnownHead, body: bytes) -> None:
        """Take a whole answer at once: `body` after a head that is `known`."""
        self._known = known
        self.heard = self.started = self.keep_alive = True
        self.status = known.status
        self.reason = known.reason
        self.headers = known.headers
        self.fields = known.fields
        self.content_length = len(body)
        self._parts.append(body)
        self._end()

    def after_head(self) -> None:
        """Wake the waiter, unless the answer is waited for whole, or its beginning is to be seen first."""
        length = self.content_length
        if self.gather or (length is not None and length <= WHOLE_LIMIT and not self.bodiless):
            return
        if self.expects != EXPECTS_ANYTHING and length is None and not self.bodiless and self._to_be_seen():
            self.held = True
            return
        self._wake_ready()

    def on_data(self, data: bytes) -> None:
        """Take the next piece of the body."""
        self.flows = True
        reader = self._reader
        if reader is not None:
            if reader.piece(data) and not self.ended and self._connection is not None:
                self._connection.pause()
            return
        self._parts.append(data)
        self._buffered += len(data)
        if self._buffered > self._limit:
            self.abort()
            self.error = UpstreamError(Failure.TOO_LARGE, f"more than {self._limit} bytes")
            self._wake_ready()
        elif self.held:
            if self._seen():
                self._wake_ready()
        elif self._buffered > HIGH_WATER and self._ready and self._connection is not None:
            self._connection.pause()

    def on_chunks(self, framed: bytes, data: bytes, now: float) -> None:
        """Take the next piece of the body, `data`, and the chunks it came in."""
        self.flows = True
        reader = self._reader
        if reader is None:
            self.on_data(data)
        elif reader.chunks(framed, data, now) and not self.ended and self._connection is not None:
            self._connection.pause()

    @property
    def sink(self) -> Callable[[bytes, bytes, float], bool] | None:
        """What takes whole chunks as they come: the reader's own method, without a step in between."""
        return None if self._reader is None else self._reader.chunks

    def on_end(self, trailers: RawHeaders) -> None:
        """The answer is complete."""
        if self.ended:
            return
        self.trailers = trailers
        self._end()

    def on_error(self, error: UpstreamError) -> None:
        """The answer will never be complete."""
        if self.ended:
            return
        self.error = error
        self._end()

    def on_upgrade(self, rest: bytes) -> None:
        """The upstream switched protocols; the connection is the tunnel's now."""
        self.upgrade_rest = rest
        self._wake_ready()

    def next_deadline(self, now: float) -> float:
        """Return by when the next piece must come."""
        until = now + self._between_s
        return until if until < self.total_deadline else self.total_deadline

    def upload_deadline(self) -> float:
        """Return by when the upstream must have reacted to what it has been sent of the body."""
        return min(monotonic() + self._first_byte_s, self.total_deadline)

    def patience_lost(self) -> Failure:
        """Return which timeout it was that just passed."""
        if monotonic() >= self.total_deadline:
            return Failure.TOTAL_TIMEOUT
        return Failure.IDLE_TIMEOUT if self.flows else Failure.FIRST_BYTE_TIMEOUT

    # -- inside --------------------------------------------------------------------------------------------

    def _to_be_seen(self) -> bool:
        """Whether the beginning of the body may turn the answer into something else."""
        fields = self.fields
        if fields.encoded:
            return False
        if self.status >= 400:
            return True
        return self.status == 200 and (
            fields.is_event_stream or fields.content_type[:16].lower() == "application/json"
        )

    def _seen(self) -> bool:
        """Whether enough has come to tell: the first event of a stream, the first piece of any other."""
        if self._buffered >= LARGEST_ERROR:
            return True
        if self.status == 200 and self.fields.is_event_stream:
            return first_event(self.fields.content_type, self.peek())
        return self.expects == EXPECTS_STREAM and self.status == 200

    def hold(self) -> None:
        """Wait for the rest of the beginning, but not for long."""
        if self._holding is None:
            self._holding = self._loop.call_later(FIRST_EVENT_S, self._held_long_enough)

    def _held_long_enough(self) -> None:
        if self.held and not self.ended:
            self._wake_ready()

    def _end(self) -> None:
        self.ended = True
        self._connection = None
        self._dismiss()
        self._wake_ready()
        if self._reader is not None:
            self._reader.ended(self)

    def _dismiss(self) -> None:
        companion, self.companion = self.companion, None
        if companion is not None:
            companion.cancel()

    def _wake_ready(self) -> None:
        self._ready = True
        self.held = False
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        watcher = self.watcher
        if watcher is None:
            self._wake()
        else:
            self.watcher = None
            watcher()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


_OF_THE_STREAM: Final = frozenset({b"content-type", b"cache-control", b"content-encoding", b"content-length"})
_NO_FIELDS: Final = ResponseFields(())
