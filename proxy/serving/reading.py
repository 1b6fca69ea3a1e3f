"""What a request asks, and so which pool takes it: its body parsed at once, or in steps, or once it has come."""

from __future__ import annotations

import asyncio
from functools import partial

from proxy.http.incoming import Incoming
from proxy.outcome import BadInput, BodyTooLarge, Refused
from proxy.request import Ticket
from proxy.serving.naming import choose_named, skim, unclear
from proxy.serving.refused import RefusedFor
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.wire.base import BadRequest, Call, Head
from proxy.wire.naming import Unclear
from proxy.wire.outline import Outline
from proxy.wire.passthrough import UNREAD
from proxy.wire.prompt import BYTES_PER_TOKEN
from proxy.wire.weight import SURELY_SLIGHT, is_light, is_slight

__all__ = ["hold_for", "inspect", "is_quick", "read", "weigh"]


def is_quick(body: bytes) -> bool:
    """Whether a body is surely parsed in no time."""
    return len(body) <= SURELY_SLIGHT or is_slight(body)


def inspect(
    service: Service,
    ticket: Ticket,
    incoming: Incoming,
    candidates: tuple[Candidate, ...],
    body: bytes,
    outline: Outline | None = None,
) -> Candidate:
    """Parse the body, or what stands for it, and choose the pool by the model that it names. Raises Refused."""
    if len(body) > service.limits.max_body_bytes:
        raise Refused(BodyTooLarge(service.limits.max_body_bytes))
    candidate = candidates[0]
    head = incoming.head
    if outline is not None and outline.understood:
        # What is told of the body's form is not true of its outline.
        head = Head(head.method, head.path, head.target, ())
    try:
        call = candidate.wire.parse(candidate.route, head, body if outline is None else outline.abstract)
    except BadRequest as error:
        call = _unread(ticket, incoming, candidate, body, error)
    else:
        call.certain = candidate.certain
        if outline is not None:
            outline.complete(call, body)
            if candidate.by_model:
                try:
                    call.named = outline.named
                except Unclear as twice:
                    # A name of its own: compiled, one variable has one type.
                    raise unclear(candidate, twice) from None
        if call.payload is None:
            _leave_unread(ticket, call)
    return _choose(service, ticket, incoming, candidates, call)


async def read(service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...]) -> Candidate:
    """Wait for the body, and choose the pool. Raises Refused."""
    hold = partial(hold_for, service, incoming, candidates[0])
    body = await incoming.body(service.limits, hold, service.joining)
    if is_slight(body):
        return inspect(service, ticket, incoming, candidates, body)
    return await weigh(service, ticket, incoming, candidates, body)


def hold_for(service: Service, incoming: Incoming, candidate: Candidate, size: int) -> None:
    """Count bytes of the body as held; who is refused for that is counted for the pool. Raises Refused."""
    try:
        incoming.hold(service.held, size)
    except Refused as error:
        raise RefusedFor(candidate.pool, error.outcome) from None


async def weigh(
    service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...], body: bytes
) -> Candidate:
    """Parse a body that may be too much to be parsed at once, and choose the pool. Raises Refused."""
    candidate = candidates[0]
    outline = None
    try:
        size = candidate.wire.json_size(incoming.head, body)
        document = body if size == len(body) else body[:size]
        if not is_light(document):
            outline = Outline(document, service.limits.max_json_values)
            await skim(service, outline)
    except BadRequest as error:
        return _choose(service, ticket, incoming, candidates, _unread(ticket, incoming, candidate, body, error))
    async with service.skimming:
        chosen = inspect(service, ticket, incoming, candidates, body, outline)
        await asyncio.sleep(0)
    return chosen


def _choose(
    service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...], call: Call
) -> Candidate:
    """Choose the pool by the model that a call names. Raises Refused."""
    ticket.call = call
    ticket.prompt_tokens = call.prompt_tokens
    candidate = candidates[0]
    if not candidate.by_model:
        # Whatever it names: all go the same way.
        return candidate
    return choose_named(service, ticket, incoming, candidates, call)


def _unread(ticket: Ticket, incoming: Incoming, candidate: Candidate, body: bytes, error: BadRequest) -> Call:
    """Return the call of a body that cannot be read. Raises Refused where no server could."""
    if error.certain and candidate.certain and incoming.fields.says_json:
        outcome = BadInput(error.message, error.param, error.code or "bad_request")
        raise RefusedFor(candidate.pool, outcome) from None
    call = Call(candidate.route, body)
    _leave_unread(ticket, call)
    return call


def _leave_unread(ticket: Ticket, call: Call) -> None:
    """Pass a body on that is not what its path's protocol would send: another server may want just that."""
    call.route = UNREAD
    call.prompt_tokens = len(call.body) // BYTES_PER_TOKEN
    ticket.route = UNREAD.name
