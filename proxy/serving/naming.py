"""Which model a request names, wherever it does, and which pool serves that.

Only where pools tell models apart or an upstream has a `model` of its own: elsewhere nobody asks for the model.
"""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.http.gathered import Gathered
from proxy.http.incoming import Incoming
from proxy.http.upload import Begun, pieces
from proxy.outcome import BadInput, BodyTooLarge, NoRoute, Refused
from proxy.request import Ticket
from proxy.serving.following import keeping
from proxy.serving.refused import RefusedFor
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.wire.base import BadRequest, Call
from proxy.wire.naming import (
    JSON,
    LOOK_BACK,
    Named,
    Repeats,
    Unclear,
    in_form,
    in_json,
    in_part,
    in_target,
    inflated,
)  # fmt: skip
from proxy.wire.outline import STEP, Outline
from proxy.wire.passthrough import UNREAD
from proxy.wire.weight import is_light

__all__ = ["choose_named", "seek", "skim", "unclear"]

_COMPRESSED: Final = 1_048_576
"""Bytes of the largest compressed body that is looked into."""
_FORM: Final = 1_048_576
"""Bytes of a form that are looked through between two turns of the loop."""
_COPIED_APART: Final = 4_194_304
"""So many bytes are copied outside of the loop."""


def choose_named(
    service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...], call: Call
) -> Candidate:
    """Return the candidate that serves the model that a body which was read names. Raises Refused."""
    candidate = candidates[0]
    try:
        names = in_target(incoming.target)
        named = call.named
        if named is None and is_light(call.body):
            size = len(call.body)
            if call.route is not UNREAD:
                size = candidate.wire.json_size(incoming.head, call.body)
            named = in_json(call.body[:size])
        elif named is None and call.route is UNREAD:
            raise Unclear("the request body cannot be read, so the model it names cannot be found")
        if named is not None:
            names.append(named)
        return _pinned(service, ticket, incoming, candidates, names, call.model)
    except Unclear as error:
        raise unclear(candidate, error) from None


async def seek(service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...]) -> Candidate:
    """Return the candidate for a request that nobody reads, looking for its model. Raises Refused."""
    names = in_target(incoming.target)
    try:
        names += await _in_body(service, incoming)
        return _pinned(service, ticket, incoming, candidates, names, "")
    except (Unclear, BadRequest) as error:
        raise unclear(candidates[0], error) from None


def unclear(candidate: Candidate, error: Exception) -> RefusedFor:
    """Return what a caller is told whose request names no model, or two."""
    text = str(error)
    return RefusedFor(candidate.pool, BadInput(f"{text[:1].upper()}{text[1:]}.", "model", "model_unclear"))


def _pinned(
    service: Service,
    ticket: Ticket,
    incoming: Incoming,
    candidates: tuple[Candidate, ...],
    names: list[Named],
    model: str,
) -> Candidate:
    """Return the candidate that serves the one model that is named. Raises Unclear and Refused."""
    distinct = {named.name for named in names}
    if model:
        distinct.add(model)
    if len(distinct) > 1:
        first, second, *_ = sorted(distinct)
        raise Unclear(f"the request names two models, {first[:100]!r} and {second[:100]!r}")
    model = distinct.pop() if distinct else ""
    kept = None if model else keeping(service, ticket, incoming, candidates)
    if kept is not None:
        return kept
    chosen = service.table.choose(candidates, model)
    if chosen is None:
        if not model and incoming.method in ("GET", "HEAD", "OPTIONS"):
            # Pages and listings: no model is asked for.
            return candidates[0]
        path = incoming.path if model else ""
        raise Refused(NoRoute(model, path, service.table.known_models(candidates), unnamed=not model))
    if chosen.pool.terms.renames and any(named.start < 0 for named in names):
        raise Unclear("the request body is compressed, so its model cannot be replaced")
    ticket.named = tuple(names)
    return chosen


# -- in bodies that no wire format has read --------------------------------------------------------------------


async def skim(service: Service, outline: Outline) -> None:
    """Read a large body, one step of one body between two turns of the loop. Raises BadRequest."""
    whole = False
    while not whole:
        async with service.skimming:
            whole = outline.step(STEP)
            await asyncio.sleep(0)


async def _in_body(service: Service, incoming: Incoming) -> list[Named]:
    fields, limits = incoming.fields, service.limits
    kind = (fields.text(b"content-type") or "").lower()
    coding = fields.get(b"content-encoding")
    if incoming.method in ("GET", "HEAD", "OPTIONS") or incoming.wants_websocket:
        return []
    if coding is not None and coding.strip().lower() != b"identity":
        if incoming.length is None or incoming.length > _COMPRESSED:
            raise Unclear("the compressed request body is too large to find its model in")
        body = await incoming.await_body(limits, service.held, service.joining)
        plain = await asyncio.to_thread(inflated, body, coding)
        named = await _in_document(service, plain)
        return [] if named is None else [Named(named.name, JSON, -1, -1)]
    if kind.startswith("multipart/"):
        return await _in_parts(service, incoming, fields.text(b"content-type") or "")
    if not fields.readable and "json" not in kind:
        return []
    if incoming.length is not None and incoming.length > limits.max_body_bytes:
        raise Refused(BodyTooLarge(limits.max_body_bytes))
    body = await incoming.await_body(limits, service.held, service.joining)
    if "urlencoded" in kind and body[:_FORM].lstrip()[:1] != b"{":
        return await _in_form(service, body)
    named = await _in_document(service, body)
    return [] if named is None else [named]


async def _in_document(service: Service, body: bytes) -> Named | None:
    """Return where a JSON body names its model. Raises Unclear and BadRequest."""
    if is_light(body):
        async with service.skimming:
            named = in_json(body)
            await asyncio.sleep(0)
        return named
    outline = Outline(body, service.limits.max_json_values)
    await skim(service, outline)
    return outline.named


async def _in_form(service: Service, body: bytes) -> list[Named]:
    """Return the names in a form as browsers encode it, looking through it in steps. Raises Unclear."""
    names: list[Named] = []
    for start in range(0, len(body), _FORM):
        async with service.skimming:
            names += in_form(body, start, min(len(body), start + _FORM))
            await asyncio.sleep(0)
    return names


async def _in_parts(service: Service, incoming: Incoming, kind: str) -> list[Named]:
    """Read a form until its model has come, and keep what was read for the upstream."""
    limits = service.limits
    if incoming.complete:
        body = await incoming.await_body(limits, service.held, service.joining)
        named = in_part(kind, body, whole=True)
        return [] if named is None else [named]
    parts = Gathered()
    window = b""
    named = None
    rest = pieces(incoming, limits.body_timeout_s, limits.min_rate_bytes)
    async for piece in rest:
        incoming.hold(service.held, len(piece))
        parts.add(piece)
        if parts.size > limits.max_body_bytes:
            raise Refused(BodyTooLarge(limits.max_body_bytes))
        window = window[-LOOK_BACK:] + piece
        # A piece may hold thousands of parts: one piece of one body between two turns of the loop.
        async with service.skimming:
            named = in_part(kind, window)
            await asyncio.sleep(0)
        if named is not None:
            break
    else:
        named = in_part(kind, window, whole=True)
    async with service.joining:
        first = parts.joined() if parts.size < _COPIED_APART else await asyncio.to_thread(parts.joined)
    incoming.begun = Begun(first, rest, Repeats())
    if named is None:
        return []
    before = parts.size - len(window)
    return [Named(named.name, named.place, named.start + before, named.end + before)]
