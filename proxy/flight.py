"""One request on its way: up to an upstream, and down to the client again."""

from __future__ import annotations

from collections.abc import Coroutine
from time import monotonic
from typing import Any

from controller.predictor.prediction import Prediction
from policies.base import Job
from policies.sizes import DEFAULT_OUTPUT_TOKENS
from proxy.answering import Answering
from proxy.fallback import cause_of
from proxy.incoming import Upload
from proxy.lease import Lease
from proxy.matching import Candidate
from proxy.outcome import BadInput, BodyTooLarge, Draining, NoRoute, Refused, UpstreamBusy
from proxy.pool import Pool
from proxy.prediction import Predictor
from proxy.rules import ClassRules
from proxy.turn import MergeTurn
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.group import OVERLOAD
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import BadRequest, Call, Head, Route
from proxy.wire.registry import likely

__all__ = ["Flight"]

_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
_OWN = frozenset({"/healthz", "/readyz"})
_PROBES = frozenset({"healthz", "readyz"})


class Flight(Answering):
    """One request on its way. Lives as long as the handler's call."""

    __slots__ = ()

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
        path = incoming.path
        if path in _OWN and incoming.method in ("GET", "HEAD"):
            self._own(path)
            return
        if service.keyring is not None:
            self.visit = service.keyring.receive(incoming)
        candidates = service.table.candidates(incoming.method, path)
        if not candidates:
            self.wire = likely(incoming.method, path, incoming.fields.raw)
            raise Refused(NoRoute(path=path, known=service.table.known_paths()))
        candidate = candidates[0]
        self.wire = candidate.wire
        self.ticket.route = candidate.route.name
        if service.lifecycle.refusing:
            raise Refused(Draining())
        if candidate.route.inspect:
            body = incoming.body_now() if incoming.complete else await incoming.body(service.limits)
            candidate = self._inspect(candidates, candidate, path, body)
        else:
            candidate = service.table.choose(candidates, "") or candidate
        self.pool = candidate.pool
        try:
            await self._through(candidate.pool, candidate.route)
        except (Refused, UpstreamError) as error:
            await self._fall_back(candidate.pool, candidate.route, error)

    def _through(self, pool: Pool, route: Route) -> Coroutine[Any, Any, None]:
        """Return the way through `pool` to an answer."""
        rules = self._classify(pool)
        if pool.affinity is not None:
            self.ticket.affinity = pool.affinity(self.call, self.incoming.fields)
        if self.call is not None and pool.mergeable(self.call):
            return self._merged(pool, rules)
        return self._gated(pool, rules) if route.queued else self._relayed(pool, rules)

    async def _fall_back(self, pool: Pool, route: Route, error: Refused | UpstreamError) -> None:
        """Try the pools that take what `pool` could not, one after the other. Raises what the last one said."""
        while True:
            cause = cause_of(error, repeatable=self._repeatable)
            other = self.service.table.fallback(pool, cause) if cause else None
            if other is None or self.started or self.committed:
                raise error
            if self.keepalive is not None:
                self.keepalive.stop()
                self.keepalive = None
            pool.passed_on(self.ticket, other.name, cause)
            self.pool = pool = other
            try:
                await self._through(pool, route)
                return
            except (Refused, UpstreamError) as next_error:
                error = next_error

    @property
    def _repeatable(self) -> bool:
        """Whether an upstream may be sent the request a second time: its body is held, and that does no harm."""
        return self.call is not None or (self.incoming.complete and self.incoming.method in _IDEMPOTENT)

    def _inspect(self, candidates: tuple[Candidate, ...], candidate: Candidate, path: str, body: bytes) -> Candidate:
        """Parse the body, and choose the pool by the model that it names."""
        incoming = self.incoming
        if len(body) > self.service.limits.max_body_bytes:
            raise Refused(BodyTooLarge(self.service.limits.max_body_bytes))
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
            known = self.service.table.known_models(candidates)
            raise Refused(NoRoute(call.model, path, known))
        return chosen

    def _classify(self, pool: Pool) -> ClassRules:
        """Fill in class and tenant, and return the rules of the class."""
        ticket, rules = self.ticket, pool.rules
        klass = pool.config.default_class
        if self.visit is not None:
            klass = self.visit.classify(ticket, self.incoming.fields, pool)
        elif self.service.trust_headers:
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
                span = pool.controller.slo_of(ticket.klass).deadline_s
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
        visit = self.visit
        if visit is not None:
            visit.admit(tokens, monotonic())
        weight = 1.0 if visit is None else visit.caller.weight
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
            ticket.id,
            arrival,
            rules.slack_s,
            ticket.tenant,
            weight,
            prompt_tokens,
            p50,
            p90,
            deadline,
            max_tokens,
            ticket.klass,
            1 if call is None else call.items,
            rules.express,
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
        lease = pool.admit(self.ticket, tokens, express=rules.express)
        if lease is None:
            lease = await pool.enter(self.ticket, tokens, express=rules.express, deadline=give_up)
        try:
            await self._call(pool, lease, outgoing)
        finally:
            lease.release()

    async def _relayed(self, pool: Pool, rules: ClassRules) -> None:
        """Call and relay without waiting for a slot."""
        self.ticket.queued = False
        if self.visit is not None:
            self.visit.admit(0.0, monotonic())
        lease = pool.unqueued(self.ticket.affinity)
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
        if answer.status in OVERLOAD:
            self._spill(pool, None)
        body = answer.body
        self._write_answer(
            answer.status, answer.reason, answer.lines, body, len(body), known_id=answer.request_id_known
        )

    def _outgoing(self, rules: ClassRules) -> Outgoing:
        """Describe the upstream call."""
        incoming, call = self.incoming, self.call
        fields = incoming.fields
        lines = b"%bX-Request-Id: %b\r\n%b" % (
            fields.hop or fields.next_hop(incoming.peer, incoming.scheme),
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
            if outgoing.body:
                incoming.put_back(outgoing.body)
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
        ticket, group, until = self.ticket, pool.group, self._until(pool)
        exchange = group.begin(lease, outgoing, until)
        try:
            if exchange is not None:
                await exchange.wait()
            if exchange is None or not group.done(lease, exchange):
                begun, exchange = exchange, None
                exchange = await group.call(lease, outgoing, total_deadline=until, begun=begun, key=ticket.affinity)
                if exchange.status in OVERLOAD:
                    self._spill(pool, exchange)
            if exchange.upgrade_rest is not None:
                await self._tunnel(exchange)
            elif self.committed and not (exchange.status == 200 and exchange.fields.is_event_stream):
                raise UpstreamError(Failure.REFUSED, f"status {exchange.status}")
            elif exchange.ended:
                self._whole(exchange)
            else:
                await self._stream(pool, lease.endpoint, exchange)
        finally:
            ticket.upstream = lease.endpoint.name
            if exchange is not None:
                exchange.abort()

    def _spill(self, pool: Pool, exchange: Exchange | None) -> None:
        """Give up an answer that says `not now` where another pool may be asked. Raises Refused."""
        if not self.committed and self._repeatable and self.service.table.fallback(pool, "overload") is not None:
            if exchange is not None:
                exchange.abort()
            raise Refused(UpstreamBusy(pool.group.retry_after_s()))

    def _own(self, path: str) -> None:
        """Answer the probes of whoever runs us."""
        ready = path != "/readyz" or self.service.ready()
        body = b"ok\n" if ready else b"draining\n" if self.service.lifecycle.draining else b"no upstream is well\n"
        self.ticket.route = path[1:]
        head = self.incoming.method == "HEAD"
        status, fields = 200 if ready else 503, b"Content-Type: text/plain\r\n"
        self._write_answer(status, None, fields, b"" if head else body, len(body))

    def observe(self) -> None:
        """Let the pool sum the request up; the probes of whoever runs us are not traffic."""
        if self.keepalive is not None:
            self.keepalive.stop()
        obs = None if self.pool is None else self.pool.finished(self.ticket)
        if obs is None and self.ticket.route not in _PROBES:
            unclaimed = self.ticket.observation("", monotonic())
            self.service.hooks.request_finished(unclaimed, self.ticket.route, self.ticket.code)
        if self.service.access_log is not None:
            self.service.access_log.note(self.ticket, self.incoming.fields, obs, monotonic())
        if self.visit is not None:
            self.visit.leave(self.ticket, monotonic())
