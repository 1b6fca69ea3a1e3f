"""Wire formats by name, and which of them a request speaks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final, NamedTuple

from proxy.wire.anthropic import Anthropic
from proxy.wire.base import Route, WireFormat
from proxy.wire.kserve import KServe
from proxy.wire.ollama import Ollama
from proxy.wire.openai import OpenAI
from proxy.wire.passthrough import OPAQUE, RELAY, Opaque, Passthrough, is_idle
from proxy.wire.rerank import Rerank
from proxy.wire.tei import TEI
from proxy.wire.tfserving import TFServing
from proxy.wire.tgi import TGI

__all__ = [
    "AUTO",
    "Match",
    "UnknownWireFormat",
    "certain",
    "detect",
    "likely",
    "route_names",
    "wire_format",
    "wire_names",
]

AUTO: Final = "auto"
"""The name that stands for: whichever format claims the path."""

PASSTHROUGH = Passthrough()

_FORMATS: dict[str, WireFormat] = {
    wire.name: wire
    for wire in (
        OpenAI(),
        Anthropic(),
        Ollama(),
        KServe(),
        TFServing(),
        TGI(),
        TEI(),
        Rerank(),
        Opaque(),
        PASSTHROUGH,
    )
}

_DETECTED: tuple[WireFormat, ...] = tuple(wire for wire in _FORMATS.values() if not isinstance(wire, Passthrough))
"""In the order in which `auto` asks them."""

_CONTESTED: dict[str, WireFormat] = {"/": PASSTHROUGH, "/predict": PASSTHROUGH, "/rerank": _FORMATS["rerank"]}
"""Paths that several servers use for different things. `rerank` can tell by the body; nobody can the others."""


class UnknownWireFormat(ValueError):
    """No format goes by that name; the message lists those that exist."""


class Match(NamedTuple):
    """A request's format and operation."""

    wire: WireFormat
    route: Route


def wire_names() -> tuple[str, ...]:
    """Return every name that a pool's `wire` may have."""
    return (AUTO, *_FORMATS)


def route_names() -> tuple[str, ...]:
    """Return the name of every operation of every format: all the values a `route` label can have."""
    return tuple(sorted({route.name for wire in _FORMATS.values() for route in wire.routes}))


def wire_format(name: str) -> WireFormat:
    """Return the format called `name`; `auto` by itself is none. Raises UnknownWireFormat."""
    wire = _FORMATS.get(name)
    if wire is None:
        close = get_close_matches(name, _FORMATS, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownWireFormat(f"unknown wire format {name!r}.{hint} Known: {', '.join(wire_names())}")
    return wire


def likely(method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> WireFormat:
    """Return the format whose errors a caller most likely understands, for a path that no pool takes."""
    found = detect(method, path).wire
    if found is not PASSTHROUGH:
        return found
    if any(name.lower() == b"anthropic-version" for name, _ in headers):
        return _FORMATS["anthropic"]
    for prefix, name in (("/v1/", "openai"), ("/openai/", "openai"), ("/api/", "ollama"), ("/v2/", "kserve")):
        if path.startswith(prefix):
            return _FORMATS[name]
    return found


def detect(method: str, path: str, wire: str = AUTO) -> Match:
    """Return the format and operation of `method path`.

    `wire` is what the pool is configured to speak. With `auto` every format is asked in turn whether the path is
    one of its own; a path that several servers use for different things (`/`, `/predict`) is claimed only by a
    format that is configured by name. Whatever nobody claims is relayed untouched, as is everything when `wire`
    is `passthrough`; a POST among it may be work (`opaque`). Raises UnknownWireFormat.
    """
    if wire == AUTO:
        contested = _CONTESTED.get(path)
        for candidate in _DETECTED if contested is None else (contested,):
            route = candidate.match(method, path)
            if route is not None:
                return Match(candidate, route)
        return Match(PASSTHROUGH, _unclaimed(method, path))
    chosen = wire_format(wire)
    route = chosen.match(method, path)
    if route is None:
        route = RELAY if chosen is PASSTHROUGH else _unclaimed(method, path)
    return Match(chosen, route)


def _unclaimed(method: str, path: str) -> Route:
    """Return what a request is that no format claims: a POST may be work."""
    return OPAQUE if method == "POST" and not is_idle(path) else RELAY


_CERTAIN = frozenset({"openai", "anthropic", "ollama"})


def certain(wire: WireFormat, path: str, configured: str) -> bool:
    """Tell whether a request to `path` is meant for `wire` beyond doubt, so that a wrong body is a mistake in it.

    Either the operator says so, or the path is one that only chat servers have: names like `/classify`, `/score` or
    `/embeddings` without a version before them are anybody's.
    """
    if configured == wire.name:
        return True
    return configured == AUTO and wire.name in _CERTAIN and _VERSIONED.search(path) is not None


_VERSIONED = re.compile(r"/v[0-9]+(?:beta)?/|/openai/|^/api/")
