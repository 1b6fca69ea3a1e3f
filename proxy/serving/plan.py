"""The way up: what a request is worth, how long it may wait, and what its upstream is asked."""

from __future__ import annotations

from typing import Final

from policies.base import Job
from proxy.config.rules import ClassRules
from proxy.dispatch.lengths import usual_work
from proxy.dispatch.pool import Pool
from proxy.http.held import UPLOAD_BYTES
from proxy.http.upload import Upload
from proxy.now import monotonic
from proxy.outcome import BadInput, Refused
from proxy.serving.answer import Answering
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Repeat
from proxy.wire.passthrough import UNREAD

__all__ = ["Asking"]

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


class Asking(Answering):
    """One request in the terms of its pool and of its upstream. `proxy.serving.flight.Flight` takes it there."""

    __slots__ = ()

    @property
    def _replayable(self) -> bool:
        """Whether an upstream may be sent the request that another one did not take: its body is held."""
        return self.call is not None or (self.incoming.complete and self.incoming.method in _IDEMPOTENT)

    def _repeatable(self, pool: Pool, error: Exception) -> bool:
        """Whether another upstream may be sent the request, which failed by `error`."""
        outgoing = self.outgoing
        if self.call is None or outgoing is None:
            return self._replayable
        if isinstance(error, UpstreamError) and error.unread:
            return True
        if outgoing.repeat != Repeat.ANSWERED:
            return outgoing.repeat == Repeat.FREELY
        answered = isinstance(error, UpstreamError) and error.failure is Failure.PROTOCOL
        return answered or "broken" in pool.config.retries.on

    def _hold(self, size: int) -> None:
        """Count `size` bytes of the body as held, until the request is over. Raises Refused."""
        self.service.held.take(size)
        self.held += size

    def _check_wishes(self, pool: Pool) -> None:
        """Refuse what the caller may ask for and has not spelled right. Raises Refused."""
        fields = self.incoming.fields
        fields.check_patience()
        if fields.klass is None or fields.klass in pool.terms.rules or not (self.visit or self.service.trust_headers):
            return
        known = ", ".join(pool.terms.rules)
        text = f"There is no class {fields.klass!r:.60}; the classes are {known}."
        raise Refused(BadInput(text, "x-trimtab-class"))

    def _classify(self, pool: Pool) -> ClassRules:
        """Fill in class and tenant, and return the rules of the class."""
        ticket, rules = self.ticket, pool.terms.rules
        klass = pool.config.default_class
        if self.visit is not None:
            klass = self.visit.classify(ticket, self.incoming.fields, pool.terms)
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
        total_s = pool.terms.total_s
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
                span = pool.controller.slo_of(ticket.klass).e2e_s
        arrival = ticket.arrival
        prompt_tokens, max_tokens = ticket.prompt_tokens, None if call is None else call.max_tokens
        tokens, p50, p90 = float(prompt_tokens), None, None
        if call is not None and call.route.generates:
            if pool.lengths is not None:
                p50, p90, work, ticket.hint = pool.lengths.foresee(ticket, call)
                tokens += work
            else:
                tokens += usual_work(call)
        visit = self.visit
        if visit is not None:
            visit.admit(tokens, monotonic(), output=tokens - prompt_tokens)
        weight = 1.0 if visit is None else visit.caller.weight
        fields = self.incoming.fields
        give_up = arrival + pool.terms.max_wait_s
        if fields.ttft_s is not None and fields.ttft_s < pool.terms.max_wait_s:
            give_up = arrival + fields.ttft_s
        deadline = None
        if span is not None:
            deadline = arrival + span
            if deadline < give_up:
                give_up = deadline
        ticket.give_up = give_up
        ticket.job = job = Job(
            ticket.id,
            arrival,
            class_slack=rules.slack_s,
            tenant=ticket.tenant,
            weight=weight,
            prompt_tokens=prompt_tokens,
            predicted_tokens=p50,
            predicted_tokens_p90=p90,
            deadline=deadline,
            max_tokens=max_tokens,
            klass=ticket.klass,
            items=1 if call is None else call.items,
            express=rules.express,
        )
        return job, tokens, give_up

    def _make_outgoing(self, rules: ClassRules) -> Outgoing:
        """Describe the upstream call."""
        incoming, call = self.incoming, self.call
        fields = incoming.fields
        lines = b"%bX-Request-Id: %b\r\n%b" % (
            fields.hop or fields.next_hop(incoming.peer, incoming.scheme),
            self.ticket.id.encode("ascii"),
            b"" if call is None else rules.slack_line,
        )
        trace = self.ticket.trace
        if trace is not None:
            lines = trace.onto(lines)
        target = incoming.target.encode("utf-8", "surrogateescape")
        outgoing = Outgoing(
            incoming.method.encode("ascii"),
            target,
            lines,
            authorization=fields.get(b"authorization"),
            replayable=True,
        )
        outgoing.hint = self.ticket.hint
        outgoing.keeper = self.keeper
        outgoing.named = self.named
        if call is not None:
            outgoing.body = call.body
            outgoing.is_json = True
            if self.wire is not None and call.route is not UNREAD:
                outgoing.means(self.wire, call)
            else:
                outgoing.repeat = Repeat.NEVER
        elif incoming.complete and incoming.announced_trailers is None and self.begun is None:
            outgoing.body = incoming.body_now()
            if outgoing.body:
                self._hold(max(0, len(outgoing.body) - self.held))
                incoming.put_back(outgoing.body)
            if incoming.method not in _IDEMPOTENT:
                outgoing.replayable = False
                outgoing.repeat = Repeat.NEVER
            if incoming.wants_websocket:
                outgoing.upgrade = b"websocket"
                outgoing.replayable = False
                outgoing.repeat = Repeat.NEVER
        else:
            limits = self.service.limits
            self._hold(UPLOAD_BYTES)
            outgoing.upload = upload = Upload(incoming, limits.body_timeout_s, limits.min_rate_bytes)
            upload.begun = self.begun
            outgoing.length = incoming.length
            outgoing.expects_continue = incoming.expects_continue and self.begun is None
            outgoing.trailer = incoming.announced_trailers
            outgoing.replayable = False
            outgoing.repeat = Repeat.NEVER
        self.outgoing = outgoing
        return outgoing
