"""What traces say about a request: names and attributes of spans, after OpenTelemetry's semantic conventions.

HTTP (stable) for the server's side, GenAI (in development) for the upstream's; what neither has is `trimtab.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from proxy.trace import Attributes

if TYPE_CHECKING:
    from controller.observation import Observation
    from proxy.request import Ticket

__all__ = ["address", "answer", "batch", "common", "model", "name", "server", "title"]

_OPERATIONS = {
    "chat.completions": "chat", "messages": "chat", "responses": "chat", "ollama.chat": "chat",
    "completions": "text_completion", "generate": "text_completion", "generate_stream": "text_completion",
    "generate.root": "text_completion", "ollama.generate": "text_completion", "kserve.generate": "text_completion",
    "embeddings": "embeddings", "tei.embed": "embeddings", "ollama.embed": "embeddings",
    "ollama.embeddings": "embeddings",
}  # fmt: skip
"""By route. Routes that are none of the conventions' operations go by their own names."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})


def name(method: str, ticket: Ticket) -> str:
    """Return `{method} {route}`, as the conventions name requests that came in."""
    return f"{method if method in _METHODS else 'HTTP'} {ticket.route}"


def title(ticket: Ticket) -> str:
    """Return `{operation} {model}`, as the conventions name calls of a model."""
    model = ticket.call.model if ticket.call is not None else ""
    return f"{_OPERATIONS.get(ticket.route, ticket.route)} {model}".rstrip()


def model(ticket: Ticket, provider: str) -> Attributes:
    """Return what is asked of which model; `provider` is the wire format that the request speaks, "" when none."""
    operation = _OPERATIONS.get(ticket.route)
    return _present(
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": (provider or None) if operation else None,
            "gen_ai.request.model": (ticket.call.model or None) if ticket.call is not None else None,
        }
    )


def common(ticket: Ticket, obs: Observation, provider: str) -> Attributes:
    """Return what is true of the whole request; `provider` as for `model`."""
    call = ticket.call
    return _present(
        {
            **model(ticket, provider),
            "gen_ai.request.max_tokens": None if call is None else call.max_tokens,
            "gen_ai.request.stream": True if call is not None and call.stream else None,
            "trimtab.request.id": ticket.id,
            "trimtab.pool": obs.pool or None,
            "trimtab.class": obs.klass,
            "trimtab.outcome": obs.result.value,
            "trimtab.reason": ticket.reason or None,
        }
    )


def server(method: str, path: str, scheme: str) -> Attributes:
    """Return what HTTP says about a request that came in."""
    found: Attributes = {"url.path": path, "url.scheme": scheme}
    if method in _METHODS:
        found["http.request.method"] = method
    else:
        found["http.request.method"] = "_OTHER"
        found["http.request.method_original"] = method
    return found


def answer(ticket: Ticket, obs: Observation) -> Attributes:
    """Return what the upstream's answer said. Token counts are the upstream's own where it gave them."""
    first = obs.first_byte if obs.streamed else None
    return _present(
        {
            "gen_ai.usage.input_tokens": obs.prompt_tokens or None,
            "gen_ai.usage.output_tokens": obs.output_tokens or None,
            "gen_ai.response.finish_reasons": (ticket.finish_reason,) if ticket.finish_reason else None,
            "gen_ai.response.time_to_first_chunk": None
            if first is None or obs.dispatched is None
            else round(first - obs.dispatched, 6),
            "trimtab.setpoints.generation": obs.generation,
        }
    )


def batch(size: int, closed_by: str) -> Attributes:
    """Return with how many a request went and what ended the wait for company; "" when nobody was waited for."""
    return _present({"trimtab.batch.size": size, "trimtab.batch.closed_by": closed_by or None})


def address(url: str) -> Attributes:
    """Return where an upstream is."""
    parts = urlsplit(url)
    return _present({"server.address": parts.hostname or None, "server.port": parts.port})


def _present(found: Mapping[str, str | int | float | bool | tuple[str, ...] | None]) -> Attributes:
    return {key: value for key, value in found.items() if value is not None}
