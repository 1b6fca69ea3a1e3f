"""One request on its way: up to an upstream, and down to the client again."""

from __future__ import annotations

import asyncio
from time import monotonic

from controller.observation import Result
from controller.predictor.prediction import Prediction
from policies.base import Job
from policies.sizes import DEFAULT_OUTPUT_TOKENS
from proxy.headers import lines_of
from proxy.incoming import Incoming, Upload
from proxy.keepalive import Keepalive
from proxy.lease import Lease
from proxy.matching import Candidate
from proxy.merging import outcome_of
from proxy.outcome import BadInput, Draining, NoRoute, Outcome, Refused, to_reply
from proxy.pool import ClassRules, Pool
from proxy.prediction import Predictor
from proxy.relay import Framing, Relay, chunked_body, cut_short, reset
from proxy.reply import head_bytes
from proxy.service import Service
from proxy.ticket import Ticket
from proxy.tunnel import Tunnel
from proxy.turn import Answer, MergeTurn
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import BadRequest, Call, Head, WireFormat
from proxy.wire.registry import detect

__all__ = ["Flight"]

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
_OWN = frozenset({"/healthz", "/readyz"})


class Flight:
    """One request on its way. Lives as long as the handler's call."""

    __slots__ = (
        "call",
        "close",
        "incoming",
        "keepalive",
        "pool",
        "service",
        "started",
        "ticket",
        "transport",
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
        self.close = not incoming.keep_alive or service.lifecycle.draining
        """Whether the client's connection ends with this answer."""
        self.started = False
        """Whether any byte of an answer has been written."""
        self.keepalive: Keepalive | None = None

    def check(self) -> None:
        """Refuse what is ambiguous or too much; nothing that follows on such a connection can be trusted."""
        try:
            self.incoming.check(self.service.limits)
        except Refused:
            self.close = True
            raise

    # -- the way up ----------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Find the pool, wait for a turn, and relay the answer. Raises Refused and UpstreamError."""
        incoming, service = self.incoming, self.service
        path = incoming.target.partition("?")[0]
        if "%" in path:
            path = incoming.path
        if path in _OWN and incoming.method in ("GET", "HEAD"):
            self._own(path)
            return
        candidates = service.table.candidates(incoming.method, path)
        if not candidates:
            self.wire = detect(incoming.method, path).wire
            raise Refused(NoRoute())
        candidate = candidates[0]
        self.wire = candidate.wire
        self.ticket.route = candidate.route.name
        if service.lifecycle.refusing:
            raise Refused(Draining())
        if candidate.route.inspect:
            candidate = await self._inspect(candidates, candidate, path)
        else:
            candidate = service.table.choose(candidates, "") or candidate
        self.pool = candidate.pool
        rules = self._classify(candidate.pool)
        if self.call is not None and candidate.pool.mergeable(self.call):
            await self._merged(candidate.pool, rules)
        elif candidate.route.queued:
            await self._gated(candidate.pool, rules)
        else:
            await self._relayed(candidate.pool, rules)

    async def _inspect(self, candidates: tuple[Candidate, ...], candidate: Candidate, path: str) -> Candidate:
        """Read and parse the body, and choose the pool by the model that it names."""
        incoming = self.incoming
        body = await incoming.body(self.service.limits)
        head = Head(incoming.method, path, incoming.target, incoming.fields.forwarded)
        try:
            call = candidate.wire.parse(candidate.route, head, body)
        except BadRequest as error:
            self.pool = candidate.pool
            raise Refused(BadInput(error.message, error.param, error.code or "bad_request")) from None
        self.call = self.ticket.call = call
        self.ticket.prompt_tokens = call.prompt_tokens
        chosen = self.service.table.choose(candidates, call.model)
        if chosen is None:
            raise Refused(NoRoute(call.model))
        return chosen

    def _classify(self, pool: Pool) -> ClassRules:
        """Fill in class and tenant, and return the rules of the class."""
        ticket, rules = self.ticket, pool.rules
        klass = pool.config.default_class
        if self.service.trust_headers:
            fields = self.incoming.fields
            if fields.klass is not None and fields.klass in rules:
                klass = fields.klass
            ticket.tenant = fields.tenant
        ticket.klass = klass
        return rules[klass]

    def _until(self, pool: Pool) -> float:
        """Return when patience with the whole request ends."""
        timeout_s = self.incoming.fields.timeout_s
        total_s = pool.total_s
        return self.ticket.arrival + (total_s if timeout_s is None or timeout_s > total_s else timeout_s)

    def _job(self, pool: Pool, rules: ClassRules) -> tuple[Job, float, float]:
        """Return the job, its predicted work in tokens, and when it gives up waiting.

        The answer is worthless after the caller's own timeout, else the class's deadline, else the promise's.
        """
        ticket, call = self.ticket, self.call
        span = self.incoming.fields.timeout_s
        if span is None:
            span = rules.deadline_s
            if span is None:
                span = pool.controller.slo.deadline_s
        arrival = ticket.arrival
        prompt_tokens, max_tokens = (0, None) if call is None else (call.prompt_tokens, call.max_tokens)
        tokens, p50, p90 = float(prompt_tokens), None, None
        if call is not None and call.route.generates:
            if pool.predictor is not None:
                prediction = ticket.prediction = self._predict(pool.predictor, call)
                p50, p90 = prediction.p50, prediction.p90
                tokens += p50
            elif max_tokens is not None and max_tokens < DEFAULT_OUTPUT_TOKENS:
                tokens += max_tokens
            else:
                tokens += DEFAULT_OUTPUT_TOKENS
        fields = self.incoming.fields
        give_up = arrival + pool.max_wait_s
        if fields.ttft_s is not None and fields.ttft_s < pool.max_wait_s:
            give_up = arrival + fields.ttft_s
        deadline = None
        if span is not None:
            deadline = arrival + span
            if deadline < give_up:
                give_up = deadline
        ticket.job = job = Job(
            ticket.id, arrival, rules.slack_s, ticket.tenant, 1.0, prompt_tokens, p50, p90, deadline, max_tokens
        )
        return job, tokens, give_up

    def _predict(self, predictor: Predictor, call: Call) -> Prediction:
        payload = call.payload
        return predictor.predict(
            model=call.model,
            tenant=self.ticket.tenant,
            route=call.route.name,
            text=call.text,
            prompt_tokens=call.prompt_tokens,
            max_tokens=call.max_tokens,
            params=payload if isinstance(payload, dict) else None,
        )

    async def _gated(self, pool: Pool, rules: ClassRules) -> None:
        """Wait for a slot, then call and relay."""
        _, tokens, give_up = self._job(pool, rules)
        outgoing = self._outgoing(rules)
        if pool.keepalive_s is not None:
            self._keep_alive(pool.keepalive_s, outgoing)
        lease = await pool.enter(self.ticket, tokens, express=rules.express, deadline=give_up)
        try:
            await self._call(pool, lease, outgoing)
        finally:
            lease.release()

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
            b"",
            b"Content-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\nX-Request-Id: %b\r\n"
            % self.ticket.id.encode("ascii"),
            chunked=True,
            close=self.close,
        )
        self.keepalive = Keepalive(
            self.service.loop, self.transport, head=head, comment=comment, interval_s=interval_s
        )

    @property
    def committed(self) -> bool:
        """Whether the head of a stream is out, though no answer has come yet."""
        return self.keepalive is not None and self.keepalive.committed

    async def _relayed(self, pool: Pool, rules: ClassRules) -> None:
        """Call and relay without waiting for a slot."""
        self.ticket.queued = False
        lease = pool.unqueued()
        self.ticket.dispatched = monotonic()
        self.ticket.generation = pool.controller.setpoints.generation
        try:
            await self._call(pool, lease, self._outgoing(rules))
        finally:
            lease.release()

    async def _merged(self, pool: Pool, rules: ClassRules) -> None:
        """Wait for a part of a merged answer and write it."""
        call, wire = self.call, self.wire
        assert call is not None
        assert wire is not None
        job, tokens, give_up = self._job(pool, rules)
        turn = MergeTurn(
            self.service.loop,
            self.ticket,
            job,
            call,
            self._outgoing(rules),
            wire,
            until=self._until(pool),
            tokens=tokens,
            express=rules.express,
            deadline=give_up,
        )
        key = (call.compat_key, self.ticket.tenant, self.incoming.fields.identity())
        answer = await pool.merged(turn, key)
        self._write_answer(answer, answer.body, len(answer.body))

    def _outgoing(self, rules: ClassRules) -> Outgoing:
        """Describe the upstream call."""
        incoming, call = self.incoming, self.call
        fields = incoming.fields
        lines = b"%bX-Request-Id: %b\r\n%b" % (
            fields.next_hop(incoming.peer, incoming.scheme),
            self.ticket.id.encode("ascii"),
            b"" if call is None else rules.slack_line,
        )
        if self.ticket.prediction is not None:
            lines += b"X-Trimtab-Predicted-Tokens: %d\r\n" % self.ticket.prediction.p50
        target = incoming.target.encode("utf-8", "surrogateescape")
        outgoing = Outgoing(
            incoming.method.encode("ascii"),
            target,
            lines,
            authorization=fields.get(b"authorization"),
            replayable=True,
        )
        if call is not None:
            outgoing.body = call.body
            outgoing.is_json = True
        elif incoming.complete:
            outgoing.body = incoming.body_now()
            outgoing.replayable = incoming.method in _IDEMPOTENT
            if incoming.wants_websocket:
                outgoing.upgrade = b"websocket"
                outgoing.replayable = False
        else:
            outgoing.upload = Upload(incoming, self.service.limits.body_timeout_s)
            outgoing.length = incoming.length
            outgoing.expects_continue = incoming.expects_continue
            outgoing.replayable = False
        return outgoing

    # -- the way down --------------------------------------------------------------------------------------

    async def _call(self, pool: Pool, lease: Lease, outgoing: Outgoing) -> None:
        """Call the upstream and relay what it answers. Raises UpstreamError only before the first byte."""
        ticket = self.ticket
        exchange = await pool.group.call(lease, outgoing, total_deadline=self._until(pool))
        try:
            ticket.upstream = lease.endpoint.name
            if exchange.upgrade_rest is not None:
                await self._tunnel(exchange)
            elif self.committed and not (exchange.status == 200 and exchange.fields.is_event_stream):
                raise UpstreamError(Failure.REFUSED, f"status {exchange.status}")
            elif exchange.ended:
                self._whole(exchange)
            else:
                await self._stream(pool, lease.endpoint, exchange)
        finally:
            exchange.abort()

    def _whole(self, exchange: Exchange) -> None:
        """Write an answer whose end has come already."""
        ticket, fields = self.ticket, exchange.fields
        body = exchange.take()
        self._tap(fields.content_type)
        if ticket.tap is not None:
            ticket.tap.feed(body)
        if cut_short(exchange, ticket.tap):
            raise UpstreamError(Failure.RESET, "the stream ended before its end mark")
        ticket.streamed = self.call is not None and self.call.stream and fields.is_event_stream
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
        answer = Answer(exchange.status, exchange.reason, exchange.lines, body, fields.has_request_id)
        self._write_answer(answer, body, length)

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
        if self.committed:
            framing = Framing.CHUNKED
        elif exchange.bodiless or exchange.content_length is not None:
            framing = Framing.LENGTH
        elif incoming.http11:
            framing = Framing.CHUNKED
        else:
            framing = Framing.CLOSE
            self.close = True
        self._tap(fields.content_type)
        ticket.streamed = self.call is not None and self.call.stream and fields.is_event_stream
        is_events = fields.is_event_stream
        relay = Relay(
            self.service.loop,
            self.incoming.protocol,
            self.transport,
            framing,
            ticket.tap,
            self._error_frame if is_events and not fields.encoded else None,
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
            ticket.first_byte, ticket.last_byte = relay.first_byte, relay.last_byte
            if relay.broken:
                # A broken answer closes the client's connection, so being cancelled just now means nothing.
                self.close = True
                error = exchange.error
                timed_out = error is not None and error.is_timeout
                ticket.ended(Result.TIMEOUT if timed_out else Result.FAILED, exchange.status)
                if exchange.fault is None:
                    pool.group.broke(endpoint)
            elif relay.done:
                ticket.ended(_result_of(exchange.status), exchange.status)

    def _tap(self, content_type: str) -> None:
        if self.call is not None and self.wire is not None:
            self.ticket.tap = self.wire.tap(self.call, content_type)

    def _error_frame(self, exchange: Exchange) -> bytes:
        """Return what tells the reader of a half-sent stream that it broke."""
        assert self.wire is not None
        outcome = outcome_of(exchange.error) if exchange.error is not None else None
        if outcome is None:
            return self.wire.stream_error("upstream_error", "The inference server broke off its answer.")
        return self.wire.stream_error(outcome.reason, outcome.message)

    def _write_answer(self, answer: Answer, body: bytes, length: int | None) -> None:
        """Write a whole answer at once."""
        status = answer.status
        if status == 204 or (status == 304 and not body):
            length, body = None, b""
        self._write_head(
            status,
            answer.reason,
            answer.lines,
            length=length,
            chunked=length is None and bool(body),
            known_id=answer.request_id_known,
            body=body,
        )
        now = monotonic()
        self.ticket.first_byte = self.ticket.last_byte = now
        self.ticket.ended(_result_of(status), status)

    def _write_head(
        self,
        status: int,
        reason: bytes,
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
            lines = b"%bX-Trimtab-Queue-Ms: %.1f\r\n" % (lines, 1000.0 * (ticket.dispatched - ticket.arrival))
        head = head_bytes(status, reason, lines, length=length, chunked=chunked, close=self.close)
        self.started = True
        ticket.code = status
        self.transport.write(head + body if len(body) < 65536 else head)
        if len(body) >= 65536:
            self.transport.write(body)

    def _own(self, path: str) -> None:
        """Answer the probes of whoever runs us."""
        ready = path != "/readyz" or self.service.ready()
        body = b"ok\n" if ready else b"draining\n" if self.service.lifecycle.draining else b"no upstream is well\n"
        self.ticket.route = path[1:]
        head = self.incoming.method == "HEAD"
        self._write_answer(
            Answer(200 if ready else 503, b"", b"Content-Type: text/plain\r\n", b"" if head else body),
            b"" if head else body,
            len(body),
        )

    def refuse(self, outcome: Outcome) -> None:
        """Answer with an outcome, or break off when an answer has begun."""
        ticket, transport = self.ticket, self.transport
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
        self._write_head(status, b"", lines_of(fields), length=len(body), known_id=True, body=b"" if head else body)
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

    def observe(self) -> None:
        """Let the pool sum the request up; the probes of whoever runs us are not traffic."""
        if self.keepalive is not None:
            self.keepalive.stop()
        if self.pool is not None:
            self.pool.finished(self.ticket)


def _result_of(status: int) -> Result:
    return Result.OK if status < 400 else Result.FAILED
