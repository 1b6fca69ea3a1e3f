"""The way down: whatever becomes of a request, written to its client exactly once."""

from __future__ import annotations

import asyncio
from functools import partial

from controller.observation import Result
from proxy.access.keys import Visit
from proxy.dispatch.merged_call import outcome_of
from proxy.dispatch.pool import Pool
from proxy.http.cors import ANY_ORIGIN
from proxy.http.headers import ResponseFields, lines_of
from proxy.http.incoming import Incoming
from proxy.http.reply import head_bytes
from proxy.http.tunnel import Tunnel
from proxy.http.upload import Begun
from proxy.now import monotonic
from proxy.outcome import Draining, NoUpstream, Outcome, UpstreamFailed, to_reply
from proxy.request import Ticket
from proxy.serving.keepalive import Keepalive
from proxy.serving.relay import Framing, Relay, chunked_body, reset
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Exchange
from proxy.upstream.outgoing import Outgoing
from proxy.wire.anyusage import any_tap, inflating
from proxy.wire.base import Call, Tap, WireFormat
from proxy.wire.kept import Place
from proxy.wire.naming import Named
from proxy.wire.passthrough import UNREAD
from proxy.wire.registry import detect

__all__ = ["Answering"]


class Answering:
    """One request's client: its head is written once, its body byte for byte, and its end never pretended.

    `proxy.serving.flight.Flight` builds on it with the way up.
    """

    __slots__ = (
        "begun",
        "call",
        "close",
        "held",
        "incoming",
        "keepalive",
        "keeper",
        "named",
        "outgoing",
        "place",
        "pool",
        "service",
        "started",
        "ticket",
        "transport",
        "visit",
        "wire",
    )

    def __init__(self, service: Service, incoming: Incoming, transport: asyncio.Transport, ticket: Ticket) -> None:
        self.service = service
        self.incoming = incoming
        self.transport = transport
        self.ticket = ticket
        self.pool: Pool | None = None
        self.wire: WireFormat | None = None
        self.call: Call | None = None
        self.place: Place | None = None
        """What its path has to do with ids of what upstreams keep; None for nothing."""
        self.outgoing: Outgoing | None = None
        """What its upstream is asked, once that is known."""
        self.keeper: Endpoint | None = None
        """The only upstream that knows what it refers to, where it refers to anything of that kind."""
        self.close = not incoming.keep_alive or service.lifecycle.draining
        """Whether the client's connection ends with this answer."""
        self.named: tuple[Named, ...] = ()
        """Where it names its model, if that matters."""
        self.begun: Begun | None = None
        """What of a form was read to find that."""
        self.held = 0
        """Bytes of its body that are counted as held."""
        self.started = False
        """Whether any byte of an answer has been written."""
        self.keepalive: Keepalive | None = None
        self.visit: Visit | None = None
        """Who sent it, where API keys are configured."""

    @property
    def committed(self) -> bool:
        """Whether the head of a stream is out, though no answer has come yet."""
        return self.keepalive is not None and self.keepalive.committed

    def _keep_alive(self, interval_s: float, outgoing: Outgoing) -> None:
        """Begin to write comments into silences, if the answer is to be a stream that knows comments."""
        comment = self.wire.keepalive() if self.wire is not None else b""
        if not comment or self.call is None or not self.call.stream or not self.incoming.http11:
            return
        # Nothing can be put into a compressed stream.
        lines = outgoing.lines.splitlines(True)
        outgoing.lines = b"".join([line for line in lines if not line.lower().startswith(b"accept-encoding:")])
        head = head_bytes(
            200,
            None,
            b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Request-Id: %b\r\n%b"
            % (self.ticket.id.encode("ascii"), self._pages()),
            chunked=True,
            close=self.close,
        )
        self.keepalive = Keepalive(
            self.service.loop, self.transport, head=head, comment=comment, interval_s=interval_s
        )

    def _whole(self, exchange: Exchange) -> None:
        """Write an answer whose end has come already."""
        ticket, fields = self.ticket, exchange.fields
        if fields.any_origin:
            self.service.any_origin = True
        body = exchange.take()
        call, wire = self.call, self.wire
        if call is not None and wire is not None and call.route is not UNREAD and not fields.encoded:
            tap = exchange.tap
            if tap is None:
                tap = wire.tap(call, fields.content_type)
                tap.feed(body)
            ticket.tap = tap
            ticket.streamed = call.stream and fields.is_event_stream
            if call.compat_key is not None:
                self._heed(exchange, body)
        else:
            self._listen(fields)
            if ticket.tap is not None:
                ticket.tap.feed(body)
        if self.place is not None and (watch := self._watch(exchange)) is not None:
            watch.feed(body)
            self._watched()
        length: int | None = len(body)
        if self.committed:
            self.transport.write(chunked_body(body, exchange.trailers))
            ticket.first_byte = ticket.last_byte = monotonic()
            ticket.ended(Result.OK, 200)
            return
        if exchange.bodiless:
            length = exchange.content_length
        elif fields.chunked and self.incoming.http11:
            length, body = None, chunked_body(body, exchange.trailers)
        self._write_answer(
            exchange.status, exchange.reason, exchange.lines, body, length, known_id=fields.has_request_id
        )
        if exchange.told is not None:
            ticket.ended(Result.FAILED, exchange.status)
            ticket.reason = "error_in_answer"

    def _heed(self, exchange: Exchange, body: bytes) -> None:
        """Take note of the whole answer to a call that might have been merged."""

    def _watch(self, exchange: Exchange) -> Tap | None:
        """Return who reads the ids in an answer; None where nobody does."""
        return None

    def _watched(self) -> None:
        """What was watched is over."""

    async def _tunnel(self, exchange: Exchange) -> None:
        """Switch protocols and pass bytes both ways until one side closes."""
        ticket, protocol = self.ticket, self.incoming.protocol
        self.close = True
        upstream = exchange.connection.take_over()
        tunnel = Tunnel(self.service.loop, protocol, self.transport, upstream)
        try:
            upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
            head = head_bytes(101, exchange.reason, exchange.lines + upgrade)
            self.started = True
            self.transport.write(head)
            ticket.ended(Result.OK, 101)
            tunnel.start(exchange.upgrade_rest or b"")
            await tunnel.run(self.incoming.drain)
        finally:
            tunnel.abort()

    async def _stream(self, pool: Pool, endpoint: Endpoint, exchange: Exchange) -> None:
        """Relay an answer whose end has not come yet."""
        ticket, incoming, fields = self.ticket, self.incoming, exchange.fields
        if fields.any_origin:
            self.service.any_origin = True
        if self.committed:
            framing = Framing.CHUNKED
        elif exchange.bodiless or exchange.content_length is not None:
            framing = Framing.LENGTH
        elif incoming.http11:
            framing = Framing.CHUNKED
        else:
            framing = Framing.CLOSE
            self.close = True
        self._listen(fields)
        is_events = fields.is_event_stream
        began = None
        if ticket.streamed and ticket.job is not None and ticket.dispatched is not None:
            began = partial(pool.controller.first_token, endpoint.name, ticket.dispatched)
        relay = Relay(
            self.service.loop,
            self.incoming.protocol,
            self.transport,
            framing,
            ticket.tap,
            self.outgoing is not None and self.outgoing.mark() in endpoint.marks,
            self._error_frame if is_events and not fields.encoded else None,
            began,
            None if self.place is None else self._watch(exchange),
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
        if self.keepalive is not None:
            self.keepalive.committed = True
            if is_events and not fields.encoded:
                self.keepalive.follow(relay)
            else:
                self.keepalive.stop()
        try:
            data = exchange.take()
            if data:
                relay.piece(data)
            exchange.attach(relay)
            await relay.finish(exchange, self.incoming.drain)
        finally:
            relay.read()
            self._watched()
            ticket.first_byte, ticket.last_byte = relay.first_byte, relay.last_byte
            if relay.broken:
                # A broken answer closes the client's connection, so being cancelled just now means nothing.
                self.close = True
                error = exchange.error
                timed_out = error is not None and error.is_timeout
                ticket.ended(Result.TIMEOUT if timed_out else Result.FAILED, exchange.status)
                if exchange.fault is None:
                    pool.group.broke(endpoint, exchange)
            elif relay.done:
                ticket.ended(_result_of(exchange.status), exchange.status)
                if exchange.error is None and pool.group.over(endpoint, exchange, self.outgoing, ticket.tap):
                    ticket.ended(Result.FAILED, exchange.status)
                    ticket.reason = "error_in_answer"

    def _pages(self) -> bytes:
        """Return the lines that let web pages read an answer of ours."""
        cors = self.service.cors
        if cors is not None:
            return cors.lines(self.incoming.fields.get(b"origin"), b"")
        return ANY_ORIGIN if self.service.any_origin else b""

    def _listen(self, fields: ResponseFields) -> None:
        """Find who reads the answer's usage: its protocol, or whoever knows them all where it may be anybody's."""
        ticket, call, wire = self.ticket, self.call, self.wire
        tap: Tap | None = None
        if call is not None and wire is not None and call.route is not UNREAD:
            tap = wire.tap(call, fields.content_type)
            ticket.streamed = call.stream and fields.is_event_stream
        elif self.incoming.method == "POST":
            tap = any_tap(fields.content_type)
            ticket.streamed = ticket.queued and fields.is_event_stream
        if tap is not None and fields.encoded:
            tap = inflating(tap, fields.get(b"content-encoding"))
        ticket.tap = tap

    def _error_frame(self, exchange: Exchange) -> bytes:
        """Return what tells the reader of a half-sent stream that it broke."""
        assert self.wire is not None
        outcome = self._blamed(outcome_of(exchange.error)) if exchange.error is not None else None
        if outcome is None:
            return self.wire.stream_error("upstream_error", "The inference server broke off its answer.")
        return self.wire.stream_error(outcome.reason, outcome.message)

    def _blamed(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, unless an upstream seems to have failed because we are going away."""
        return (
            Draining() if self.service.lifecycle.cut and isinstance(outcome, UpstreamFailed | NoUpstream) else outcome
        )

    def _write_answer(
        self,
        status: int,
        reason: bytes | None,
        lines: bytes,
        body: bytes,
        length: int | None,
        *,
        known_id: bool = False,
    ) -> None:
        """Write a whole answer at once."""
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
        now = monotonic()
        self.ticket.first_byte = self.ticket.last_byte = now
        self.ticket.ended(_result_of(status), status)

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
        ticket = self.ticket
        if not known_id:
            lines = b"%bX-Request-Id: %b\r\n" % (lines, ticket.id.encode("ascii"))
        if ticket.job is not None and ticket.dispatched is not None:
            # Tenths by whole numbers: printing floats costs more than the rest of the head.
            tenths = int(10_000.0 * (ticket.dispatched - ticket.arrival) + 0.5)
            lines = b"%bX-Trimtab-Queue-Ms: %d.%d\r\n" % (lines, tenths // 10, tenths % 10)
        if (self.visit is not None or self.incoming.fields.claims) and self.pool is not None:
            lines += ticket.standing()
        if self.service.cors is not None:
            lines += self.service.cors.lines(self.incoming.fields.get(b"origin"), lines)
        head = head_bytes(status, reason, lines, length=length, chunked=chunked, close=self.close)
        self.started = True
        ticket.code = status
        if len(body) < 65536:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)

    def refuse(self, outcome: Outcome) -> None:
        """Answer with an outcome, or break off when an answer has begun."""
        ticket, transport = self.ticket, self.transport
        ticket.reason = outcome.reason
        if self.started:
            self.close = True
            reset(transport)
            ticket.ended(outcome.result, ticket.code)
            return
        if self.committed:
            self._refuse_inside(outcome)
            return
        ticket.ended(outcome.result, outcome.status)
        if transport.is_closing():
            return
        wire = self.wire or detect(self.incoming.method, self.incoming.target.partition("?")[0]).wire
        status, fields, body = to_reply(outcome, wire, ticket.id)
        if not self.incoming.complete:
            self.close = True
        head = self.incoming.method == "HEAD"
        lines = lines_of(fields)
        if self.service.any_origin and self.service.cors is None:
            lines += ANY_ORIGIN
        self._write_head(status, None, lines, length=len(body), known_id=True, body=b"" if head else body)
        if self.pool is not None and outcome.result in (Result.REFUSED, Result.SHED) and outcome.status >= 429:
            self.pool.hooks.shed(self.pool.name, outcome.reason)

    def _refuse_inside(self, outcome: Outcome) -> None:
        """Say what went wrong inside a stream whose head is out, and break it off."""
        self.close = True
        self.ticket.ended(outcome.result, 200)
        frame = self.wire.stream_error(outcome.reason, outcome.message) if self.wire is not None else b""
        if not self.transport.is_closing():
            if frame:
                self.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            self.transport.close()


def _result_of(status: int) -> Result:
    return Result.OK if status < 400 else Result.FAILED
