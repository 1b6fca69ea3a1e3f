"""What is answered here: the probes of whoever runs us, browsers' questions, and the list of all pools' models."""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.access.keys import Visit
from proxy.dispatch.pool import Pool
from proxy.http.cors import Cors
from proxy.http.incoming import Incoming
from proxy.now import monotonic
from proxy.outcome import Refused
from proxy.request import Ticket
from proxy.serving.answer import Answer
from proxy.serving.model_list import Listing, merged_listing
from proxy.serving.plan import classify, make_outgoing
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.upstream.errors import UpstreamError

__all__ = ["list_models", "write_preflight", "write_probe"]

_LIST_S: Final = 5.0
"""An upstream that has not listed its models by then is left out."""
_LIST_BYTES: Final = 4_194_304
_CONDITIONS: Final = (b"accept-encoding:", b"if-none-match:", b"if-modified-since:", b"range:")
"""Fields that are about one server's answer."""


def write_probe(service: Service, ticket: Ticket, incoming: Incoming, answer: Answer) -> None:
    """Say how we are."""
    ticket.route = name = incoming.path.rpartition("/")[2]
    ready = name != "readyz" or service.ready()
    body = b"ok\n" if ready else b"draining\n" if service.lifecycle.draining else b"no upstream is well\n"
    shown = b"" if incoming.method == "HEAD" else body
    answer.write(200 if ready else 503, None, b"Content-Type: text/plain\r\n", shown, len(body))


def write_preflight(cors: Cors, ticket: Ticket, incoming: Incoming, answer: Answer) -> None:
    """Tell a browser what its page may ask, in the upstream's place."""
    ticket.route = "preflight"
    answer.write(204, None, cors.preflight(incoming.fields), b"", None)


async def list_models(
    service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...], visit: Visit | None
) -> bytes | None:
    """Return the models of all pools in one list, without those that are down; None where all are."""
    asked = [_ask_for_list(service, ticket, incoming, candidate.pool, visit) for candidate in candidates]
    bodies = await asyncio.gather(*asked)
    if all(body is None for body in bodies):
        return None
    listings = [
        Listing(body, candidate.pool.config.match.models)
        for body, candidate in zip(bodies, candidates, strict=True)
    ]  # fmt: skip
    return merged_listing(incoming.path, listings)


async def _ask_for_list(
    service: Service, ticket: Ticket, incoming: Incoming, pool: Pool, visit: Visit | None
) -> bytes | None:
    """Ask one pool for its models; None where it does not say within `_LIST_S`."""
    rules = classify(ticket, incoming.fields, pool, visit, trusted=service.trust_headers)
    outgoing = make_outgoing(service, ticket, incoming, rules)
    lines = outgoing.lines.splitlines(True)
    outgoing.lines = b"".join([line for line in lines if not line.lower().startswith(_CONDITIONS)])
    try:
        lease = pool.unqueued()
    except Refused:
        return None
    exchange = None
    try:
        until = monotonic() + _LIST_S
        exchange = await pool.group.call(lease, outgoing, total_deadline=until, gather=True, limit=_LIST_BYTES)
        return exchange.take() if exchange.status == 200 else None
    except UpstreamError:
        return None
    finally:
        if exchange is not None:
            exchange.abort()
        lease.release()
