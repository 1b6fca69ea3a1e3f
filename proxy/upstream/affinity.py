"""What ties a request to one upstream rather than another: the value of a header, or how its prompt begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import orjson

from proxy.config.model import PoolConfig
from proxy.http.request_fields import RequestFields
from proxy.request import AffinityKey
from proxy.wire.base import Call

__all__ = ["AffinityReader", "affinity_of", "header_key", "prefix_key", "prompt_bytes"]

AffinityReader: TypeAlias = Callable[[Call | None, RequestFields], AffinityKey | None]
"""Returns a request's key; None when nothing ties it to anybody."""

MAX_PREFIX_BYTES = 65_536
"""How much of a prompt's beginning is looked at."""

_PARTS = ("tools", "system", "instructions", "messages", "prompt", "input", "inputs")
"""Fields that make up a prompt, in the order in which servers' templates put them together."""


def affinity_of(config: PoolConfig) -> AffinityReader | None:
    """Return what reads the key by which a pool routes; None where it routes by load alone."""
    routing = config.routing
    if len(config.upstreams) < 2:
        return None
    if routing.strategy == "prefix":
        size = routing.block_bytes
        return lambda call, fields: None if call is None else prefix_key(call, size)
    if routing.strategy == "sticky" and routing.header is not None:
        name = routing.header.lower().encode()
        return lambda call, fields: header_key(fields, name)
    return None


def header_key(fields: RequestFields, name: bytes) -> bytes | None:
    """Return the first value of the field `name` (lower case), whoever it was meant for; None for none."""
    for field, value in fields.raw:
        if len(field) == len(name) and field.lower() == name:
            return value.strip() or None
    return None


def prefix_key(call: Call, block_bytes: int) -> tuple[int, ...] | None:
    """Return the chained hashes of the whole blocks that a prompt begins with; None when it is shorter than one.

    Each hash stands for its block and all before it, so equal hashes mean equal beginnings, for the same model.
    """
    material = prompt_bytes(call, MAX_PREFIX_BYTES)
    chain, hashes = hash(call.model), []
    for start in range(0, len(material) - block_bytes + 1, block_bytes):
        chain = hash((chain, material[start : start + block_bytes]))
        hashes.append(chain)
    return tuple(hashes) or None


def prompt_bytes(call: Call, limit: int) -> bytes:
    """Return the first `limit` bytes of a prompt, whatever the order of the fields around it."""
    if type(call.payload) is not dict:
        return call.text.encode("utf-8", "replace")[:limit]
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(call.payload):
        pieces.append(piece)
        size += len(piece)
        if size >= limit:
            break
    return b"".join(pieces)[:limit]


def _pieces(payload: dict[str, Any]) -> Iterator[bytes]:
    for name in _PARTS:
        value = payload.get(name)
        if type(value) is str:
            yield value.encode("utf-8", "replace")
        elif value is not None:
            for part in value if type(value) is list else (value,):
                try:
                    yield orjson.dumps(part)
                except TypeError:
                    return  # nested beyond what can be written out; what came before is enough
