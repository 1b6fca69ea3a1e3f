"""Reading a request's body: bounded in size, time and depth."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import orjson
from aiohttp import web

from backend.api.errors import BodyTooLarge, InvalidRequest
from backend.api.fields import type_name

__all__ = ["BODY_TIMEOUT_S", "MAX_CONTAINERS", "MAX_DEPTH", "MAX_VALUES", "parse_body", "read_json"]

MAX_DEPTH: Final = 64
"""Nesting allowed in a body. Chat templates walk tool schemas recursively, so this keeps them off the stack's end."""
MAX_CONTAINERS: Final = 50_000
"""Arrays and objects in a body; each costs its parser ten times what a number does."""
MAX_VALUES: Final = 1_000_000
"""Commas in a body: tokens, mostly."""
INLINE_BYTES: Final = 128 << 10
"""Bodies up to this size are parsed on the event loop, whatever is in them: that takes a few milliseconds."""
BODY_TIMEOUT_S: Final = 60.0
"""A body that takes longer to arrive is given up."""


async def read_json(request: web.Request) -> dict[str, Any]:
    """Read the body of `request` as a JSON object.

    Raises:
        BodyTooLarge: longer than the application's client_max_size.
        InvalidRequest: late, packed wrongly, or not a JSON object.
        web.RequestPayloadError: the client is gone.
    """
    limit = request.client_max_size
    if request.content_length is not None and request.content_length > limit:
        raise BodyTooLarge(f"The body has {request.content_length} bytes; at most {limit} are read.")
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            raw = await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BodyTooLarge(f"The body is longer than the {limit} bytes that are read.") from None
    except TimeoutError:
        raise InvalidRequest(
            f"The body did not arrive within {BODY_TIMEOUT_S:g} seconds.", code="body_timeout"
        ) from None
    except web.RequestPayloadError as error:
        if request.transport is None or request.transport.is_closing():
            raise
        raise InvalidRequest(f"The body cannot be read: {error}.", code="invalid_body") from None
    # The parser lets nobody else run, but what is done with its result takes as long, and that does in a thread.
    return parse_body(raw) if len(raw) <= INLINE_BYTES else await asyncio.to_thread(parse_body, raw)


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises:
        InvalidRequest: not JSON (RFC 8259), nested deeper than MAX_DEPTH, of too many values, or not an object.
    """
    if len(raw) > INLINE_BYTES:
        _check_values(raw)
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {type_name(body)}.", code="invalid_json")
    if _deeper_than(body, MAX_DEPTH):
        raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")
    return body


def _check_values(raw: bytes) -> None:
    """Refuse what would stop all streams while it is parsed. Characters within strings count: a text has few of them.

    Raises:
        InvalidRequest: more than MAX_CONTAINERS or MAX_VALUES.
    """
    for what, limit, count in (
        ("arrays and objects", MAX_CONTAINERS, raw.count(b"[") + raw.count(b"{")),
        ("values", MAX_VALUES, raw.count(b",")),
    ):
        if count > limit:
            raise InvalidRequest(f"The body has more than {limit} {what}.", code="too_many_values")


def _deeper_than(value: Any, limit: int) -> bool:
    """Walk level by level (not recursively); lists of scalars, the bulk of token arrays, are skipped fast."""
    level: list[Any] = [value]
    for _ in range(limit):
        following: list[Any] = []
        for node in level:
            children = node.values() if isinstance(node, dict) else node
            following.extend(child for child in children if isinstance(child, dict | list))
        if not following:
            return False
        level = following
    return True
