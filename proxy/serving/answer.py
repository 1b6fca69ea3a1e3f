"""What a client is told: an answer passed on whole or as it comes, one of our own, or a tunnel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.observation import Result
from proxy.dispatch.merged_call import outcome_of
from proxy.http.cors import ANY_ORIGIN
from proxy.http.fields import lines_of
from proxy.http.incoming import Incoming
from proxy.http.reply import head_bytes
from proxy.http.response_fields import ResponseFields
from proxy.http.tunnel import Tunnel
from proxy.now import monotonic
from proxy.outcome import Outcome, to_reply
from proxy.request import Ticket
from proxy.serving.keepalive import Keepalive
from proxy.serving.relay import Framing, Relay, chunked_body, reset
from proxy.serving.service import Service
from proxy.upstream.exchange import Exchange
from proxy.upstream.outgoing import Outgoing
from proxy.wire.anyusage import any_tap, inflating
from proxy.wire.base import Tap
from proxy.wire.passthrough import UNREAD
from proxy.wire.registry import detect

__all__ = ["Answer"]


class Answer:
    """One client's answer: its head is written once, its body byte for byte, and its end never pretended.

    Whatever is written, the ticket takes note of: when, with which status, and who reads the usage in it.
    """

    __slots__ = (
        "_incoming",
        "_keepalive",
        "_service",
        "_ticket",
        "_transport",
        "broken",
        "close",
        "complete",
        "started",
        "tells_standing",
    )

    def __init__(self, service: Service, incoming: Incoming, transport: asyncio.Transport, ticket: Ticket) -> None:
        self._service = service
        self._incoming = incoming
        self._transport = transport
        self._ticket = ticket
        self._keepalive: Keepalive | None = None
        self.close = not incoming.keep_alive or service.lifecycle.draining
        """Whether the client's connection ends with this answer."""
        self.started = False
        """Whether any byte of an answer has been written, comments in a stream's silence aside."""
        self.complete = False
        """Whether a stream was passed on to its end."""
        self.broken = False
        """Whether one ended before it was complete."""
        self.tells_standing = False
        """Whether the caller is told as what it was served: its class and tenant."""

    @property
    def committed(self) -> bool:
        """Whether the head of a stream is out, though no answer has come yet."""
        return self._keepalive is not None and self._keepalive.committed

    @property
    def kept_alive(self) -> bool:
        """Whether comments are written into its silences."""
        return self._keepalive is not None

    @property
    def lost(self) -> bool:
        """Whether the client's connection is closed, or about to be."""
        return self._transport.is_closing()

    # -- into silences -------------------------------------------------------------------------------------

    def keep_alive(self, interval_s: float, outgoing: Outgoing) -> None:
        """Begin to write comments into silences, if the answer is to be a stream that knows comments."""
        ticket, call = self._ticket, self._ticket.call
        comment = ticket.wire.keepalive() if ticket.wire is not None else b""
        if not comment or call is None or not call.stream or not self._incoming.http11:
            return
        # Nothing can be put into a compressed stream.
        lines = outgoing.lines.splitlines(True)
        outgoing.lines = b"".join([line for line in lines if not line.lower().startswith(b"accept-encoding:")])
        head = head_bytes(
            200,
            None,
            b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Request-Id: %b\r\n%b"
            % (ticket.id.encode("ascii"), self._pages()),
            chunked=True,
            close=self.close,
        )
        self._keepalive = Keepalive(
            self._service.loop, self._transport, head=head, comment=comment, interval_s=interval_s
        )

    def keep_still(self) -> None:
        """Write nothing into silences any more."""
        if self._keepalive is not None:
            self._keepalive.stop()
            self._keepalive = None

    # -- an upstream's answer ------------------------------------------------------------------------------

    def write_whole(self, exchange: Exchange) -> None:
        """Write an answer whose end has come already."""
        ticket, fields = self._ticket, exchange.fields
        if fields.any_origin:
            self._service.any_origin = True
        body = exchange.take()
        call, wire = ticket.call, ticket.wire
        if call is not None and wire is not None and call.route is not UNREAD and not fields.encoded:
            tap = exchange.tap
            if tap is None:
                tap = wire.tap(call, fields.content_type)
                tap.feed(body)
            ticket.tap = tap
            ticket.streamed = call.stream and fields.is_event_stream
        else:
            self._listen(fields)
            if ticket.tap is not None:
                ticket.tap.feed(body)
        length: int | None = len(body)
        if self.committed:
            self._transport.write(chunked_body(body, exchange.trailers))
            ticket.first_byte = ticket.last_byte = monotonic()
            ticket.ended(Result.OK, 200)
            return
        if exchange.bodiless:
            length = exchange.content_length
        elif fields.chunked and self._incoming.http11:
            length, body = None, chunked_body(body, exchange.trailers)
        self.write(exchange.status, exchange.reason, exchange.lines, body, length, known_id=fields.has_request_id)
        if exchange.told is not None:
            ticket.ended(Result.FAILED, exchange.status)
            ticket.reason = "error_in_answer"

    async def write_stream(
        self, exchange: Exchange, *, marked: bool, began: Callable[[float], None] | None, watch: Tap | None
    ) -> None:
        """Relay an answer whose end has not come yet.

        `marked` says whether streams of its kind end with a mark, `began` is told when the first piece of a stream
        goes out, and `watch` reads each piece before it does.
        """
        ticket, incoming, fields = self._ticket, self._incoming, exchange.fields
        if fields.any_origin:
            self._service.any_origin = True
        framing = self._framing(exchange)
        self._listen(fields)
        frames = fields.is_event_stream and not fields.encoded
        relay = Relay(
            self._service.loop,
            incoming.protocol,
            self._transport,
            framing,
            ticket,
            marked,
            self._error_frame if frames else None,
            began if ticket.streamed else None,
            watch,
        )
        if self.committed:
            self.started = True
        else:
            self._write_head(
                exchange.status,
                exchange.reason,
                exchange.lines,
                length=exchange.content_length,
                chunked=framing == Framing.CHUNKED,
                known_id=fields.has_request_id,
            )
        keepalive = self._keepalive
        if keepalive is not None:
            keepalive.committed = True
            if frames:
                keepalive.follow(relay)
            else:
                keepalive.stop()
        try:
            data = exchange.take()
            if data:
                relay.piece(data)
            exchange.attach(relay)
            await relay.finish(exchange, incoming.drain)
        finally:
            relay.read()
            if relay.broken:
                self.broken = True
                # A broken answer closes the client's connection, so being cancelled just now means nothing.
                self.close = True
                error = exchange.error
                timed_out = error is not None and error.is_timeout
                ticket.ended(Result.TIMEOUT if timed_out else Result.FAILED, exchange.status)
            elif relay.done:
                self.complete = True
                ticket.ended(_result_of(exchange.status), exchange.status)

    def _framing(self, exchange: Exchange) -> int:
        """Return how the client is told where a stream ends."""
        if self.committed:
            return Framing.CHUNKED
        if exchange.bodiless or exchange.content_length is not None:
            return Framing.LENGTH
        if self._incoming.http11:
            return Framing.CHUNKED
        self.close = True
        return Framing.CLOSE

    async def tunnel(self, exchange: Exchange) -> None:
        """Switch protocols and pass bytes both ways until one side closes."""
        protocol = self._incoming.protocol
        self.close = True
        upstream = exchange.connection.take_over()
        tunnel = Tunnel(self._service.loop, protocol, self._transport, upstream)
        try:
            upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            head = head_bytes(101, exchange.reason, exchange.lines + upgrade)
            self.started = True
            self._transport.write(head)
            self._ticket.ended(Result.OK, 101)
            tunnel.start(exchange.upgrade_rest or b"")
            await tunnel.run(self._incoming.drain)
        finally:
            tunnel.abort()

    def _listen(self, fields: ResponseFields) -> None:
        """Find who reads the answer's usage: its protocol, or whoever knows them all where it may be anybody's."""
        ticket, call, wire = self._ticket, self._ticket.call, self._ticket.wire
        tap: Tap | None = None
        if call is not None and wire is not None and call.route is not UNREAD:
            tap = wire.tap(call, fields.content_type)
            ticket.streamed = call.stream and fields.is_event_stream
        elif self._incoming.method == "POST":
            tap = any_tap(fields.content_type)
            ticket.streamed = ticket.queued and fields.is_event_stream
        if tap is not None and fields.encoded:
            tap = inflating(tap, fields.get(b"content-encoding"))
        ticket.tap = tap

    def _error_frame(self, exchange: Exchange) -> bytes:
        """Return what tells the reader of a half-sent stream that it broke."""
        wire, error = self._ticket.wire, exchange.error
        assert wire is not None
        if error is None:
            return wire.stream_error("upstream_error", "The inference server broke off its answer.")
        outcome = self._service.lifecycle.blamed(outcome_of(error))
        return wire.stream_error(outcome.reason, outcome.message)

    # -- one of our own ------------------------------------------------------------------------------------

    def write(
        self,
        status: int,
        reason: bytes | None,
        lines: bytes,
        body: bytes,
        length: int | None,
        *,
        known_id: bool = False,
    ) -> None:
        """Write a whole answer at once; without a `length` its body is chunked already.

        `lines` are those of its head but for the framing; `known_id` says whether they bring a request id.
        """
        if status == 204 or (status == 304 and not body):
            length, body = None, b""
        self._write_head(
            status,
            reason,
            lines,
            length=length,
            chunked=length is None and bool(body),
            known_id=known_id,
            body=body,
        )
        ticket = self._ticket
        ticket.first_byte = ticket.last_byte = monotonic()
        ticket.ended(_result_of(status), status)

    def refuse(self, outcome: Outcome) -> bool:
        """Answer with an outcome, or break off when an answer has begun. Returns whether it was an answer."""
        ticket, transport = self._ticket, self._transport
        ticket.reason = outcome.reason
        if self.started:
            self.close = True
            reset(transport)
            ticket.ended(outcome.result, ticket.code)
            return False
        if self.committed:
            self._refuse_inside(outcome)
            return False
        ticket.ended(outcome.result, outcome.status)
        if transport.is_closing():
            return False
        incoming = self._incoming
        wire = ticket.wire or detect(incoming.method, incoming.target.partition("?")[0]).wire
        status, fields, body = to_reply(outcome, wire, ticket.id)
        if not incoming.complete:
            self.close = True
        lines = lines_of(fields)
        if self._service.any_origin and self._service.cors is None:
            lines += ANY_ORIGIN
        shown = b"" if incoming.method == "HEAD" else body
        self._write_head(status, None, lines, length=len(body), known_id=True, body=shown)
        return True

    def _refuse_inside(self, outcome: Outcome) -> None:
        """Say what went wrong inside a stream whose head is out, and break it off."""
        self.close = True
        ticket, transport = self._ticket, self._transport
        ticket.ended(outcome.result, 200)
        frame = ticket.wire.stream_error(outcome.reason, outcome.message) if ticket.wire is not None else b""
        if not transport.is_closing():
            if frame:
                transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            transport.close()

    # -- the head ------------------------------------------------------------------------------------------

    def _write_head(
        self,
        status: int,
        reason: bytes | None,
        lines: bytes,
        *,
        length: int | None,
        chunked: bool = False,
        known_id: bool = False,
        body: bytes = b"",
    ) -> None:
        ticket, service, transport = self._ticket, self._service, self._transport
        if not known_id:
            lines = b"%bX-Request-Id: %b\r\n" % (lines, ticket.id.encode("ascii"))
        if ticket.job is not None and ticket.dispatched is not None:
            # Tenths by whole numbers: printing floats costs more than the rest of the head.
            tenths = int(10_000.0 * (ticket.dispatched - ticket.arrival) + 0.5)
            lines = b"%bX-Trimtab-Queue-Ms: %d.%d\r\n" % (lines, tenths // 10, tenths % 10)
        if self.tells_standing:
            lines += ticket.standing()
        if service.cors is not None:
            lines += service.cors.lines(self._incoming.fields.get(b"origin"), lines)
        head = head_bytes(status, reason, lines, length=length, chunked=chunked, close=self.close)
        self.started = True
        ticket.code = status
        if len(body) < 65536:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    def _pages(self) -> bytes:
        """Return the lines that let web pages read an answer of ours."""
        cors = self._service.cors
        if cors is not None:
            return cors.lines(self._incoming.fields.get(b"origin"), b"")
        return ANY_ORIGIN if self._service.any_origin else b""


def _result_of(status: int) -> Result:
    return Result.OK if status < 400 else Result.FAILED
