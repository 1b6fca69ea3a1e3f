"""What a request is worth, how long it may wait, and what its upstream is asked."""

from __future__ import annotations

from typing import Final

from policies.base import Job
from proxy.access.keys import Visit
from proxy.config.rules import ClassRules
from proxy.dispatch.lengths import usual_work
from proxy.dispatch.pool import Pool
from proxy.http.held import UPLOAD_BYTES
from proxy.http.incoming import Incoming
from proxy.http.request_fields import RequestFields
from proxy.http.upload import Upload
from proxy.now import monotonic
from proxy.outcome import BadInput, Refused
from proxy.request import Ticket
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Repeat
from proxy.wire.passthrough import UNREAD

__all__ = [
    "answer_by",
    "check_wishes",
    "classify",
    "is_repeatable",
    "is_replayable",
    "make_job",
    "make_outgoing",
]  # fmt: skip

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})


def check_wishes(fields: RequestFields, pool: Pool, *, heard: bool) -> None:
    """Refuse what the caller asks for and has not spelled right; a class only where it is `heard`. Raises Refused."""
    fields.check_patience()
    if fields.klass is None or fields.klass in pool.terms.rules or not heard:
        return
    known = ", ".join(pool.terms.rules)
    text = f"There is no class {fields.klass!r:.60}; the classes are {known}."
    raise Refused(BadInput(text, "x-trimtab-class"))


def classify(ticket: Ticket, fields: RequestFields, pool: Pool, visit: Visit | None, *, trusted: bool) -> ClassRules:
    """Fill in class and tenant, and return the rules of the class; callers without a key choose where `trusted`."""
    rules = pool.terms.rules
    klass = pool.config.default_class
    if visit is not None:
        klass = visit.classify(ticket, fields, pool.terms)
    elif trusted:
        if fields.klass is not None and fields.klass in rules:
            klass = fields.klass
        ticket.tenant = fields.tenant
    ticket.klass = klass
    return rules[klass]


def answer_by(ticket: Ticket, fields: RequestFields, pool: Pool) -> float:
    """Return when patience with the whole request ends (monotonic seconds)."""
    timeout_s = fields.timeout_s
    total_s = pool.terms.total_s
    return ticket.arrival + (total_s if timeout_s is None or timeout_s > total_s else timeout_s)


def make_job(ticket: Ticket, fields: RequestFields, pool: Pool, rules: ClassRules, visit: Visit | None) -> float:
    """Fill in the job and when it gives up waiting, and return its predicted work in tokens. Raises Refused.

    The answer is worthless after the caller's own timeout, else the class's deadline, else the promise's.
    """
    call = ticket.call
    span = fields.timeout_s
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
    weight = 1.0
    if visit is not None:
        visit.admit(tokens, monotonic(), output=tokens - prompt_tokens)
        weight = visit.caller.weight
    give_up = arrival + pool.terms.max_wait_s
    if fields.ttft_s is not None and fields.ttft_s < pool.terms.max_wait_s:
        give_up = arrival + fields.ttft_s
    deadline = None
    if span is not None:
        deadline = arrival + span
        if deadline < give_up:
            give_up = deadline
    ticket.give_up = give_up
    ticket.job = Job(
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
    return tokens


def make_outgoing(
    service: Service, ticket: Ticket, incoming: Incoming, rules: ClassRules, keeper: Endpoint | None = None
) -> Outgoing:
    """Describe the upstream call; only `keeper` is asked, where there is one. Raises Refused."""
    call, fields = ticket.call, incoming.fields
    lines = b"%bX-Request-Id: %b\r\n%b" % (
        fields.hop or fields.next_hop(incoming.peer, incoming.scheme),
        ticket.id.encode("ascii"),
        b"" if call is None else rules.slack_line,
    )
    if ticket.trace is not None:
        lines = ticket.trace.onto(lines)
    outgoing = Outgoing(
        incoming.method.encode("ascii"),
        incoming.target.encode("utf-8", "surrogateescape"),
        lines,
        authorization=fields.get(b"authorization"),
        replayable=True,
    )
    outgoing.hint = ticket.hint
    outgoing.keeper = keeper
    outgoing.named = ticket.named
    if call is not None:
        outgoing.body = call.body
        outgoing.is_json = True
        if ticket.wire is not None and call.route is not UNREAD:
            outgoing.means(ticket.wire, call)
        else:
            outgoing.repeat = Repeat.NEVER
    elif incoming.complete and incoming.announced_trailers is None and incoming.begun is None:
        _add_body(service, incoming, outgoing)
    else:
        _add_upload(service, incoming, outgoing)
    return outgoing


def _add_body(service: Service, incoming: Incoming, outgoing: Outgoing) -> None:
    """Pass on a body that has come, and that nobody reads."""
    outgoing.body = incoming.body_now()
    if outgoing.body:
        incoming.hold(service.held, max(0, len(outgoing.body) - incoming.held))
        incoming.put_back(outgoing.body)
    if incoming.method not in _IDEMPOTENT:
        outgoing.replayable = False
        outgoing.repeat = Repeat.NEVER
    if incoming.wants_websocket:
        outgoing.upgrade = b"websocket"
        outgoing.replayable = False
        outgoing.repeat = Repeat.NEVER


def _add_upload(service: Service, incoming: Incoming, outgoing: Outgoing) -> None:
    """Pass a body on as it comes."""
    incoming.hold(service.held, UPLOAD_BYTES)
    outgoing.upload = upload = Upload(incoming, service.limits.body_timeout_s, service.limits.min_rate_bytes)
    upload.begun = incoming.begun
    outgoing.length = incoming.length
    outgoing.expects_continue = incoming.expects_continue and incoming.begun is None
    outgoing.trailer = incoming.announced_trailers
    outgoing.replayable = False
    outgoing.repeat = Repeat.NEVER


def is_replayable(ticket: Ticket, incoming: Incoming) -> bool:
    """Whether an upstream may be sent the request that another one did not take: its body is held."""
    return ticket.call is not None or (incoming.complete and incoming.method in _IDEMPOTENT)


def is_repeatable(
    ticket: Ticket, incoming: Incoming, outgoing: Outgoing | None, pool: Pool, error: Exception
) -> bool:
    """Whether another upstream may be sent the request, which failed in `pool` by `error`."""
    if ticket.call is None or outgoing is None:
        return is_replayable(ticket, incoming)
    if isinstance(error, UpstreamError) and error.unread:
        return True
    if outgoing.repeat != Repeat.ANSWERED:
        return outgoing.repeat == Repeat.FREELY
    answered = isinstance(error, UpstreamError) and error.failure is Failure.PROTOCOL
    return answered or "broken" in pool.config.retries.on
