"""Parsing a request's body: bounded in depth and in values."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from backend.api.errors import InvalidRequest
from backend.api.fields import type_name

__all__ = ["MAX_CONTAINERS", "MAX_DEPTH", "MAX_VALUES", "parse_body", "parse_json"]

MAX_DEPTH: Final = 64
"""Nesting allowed in a body. Chat templates walk tool schemas recursively, so this keeps them off the stack's end."""
MAX_CONTAINERS: Final = 50_000
"""Arrays and objects in a body; each costs its parser ten times what a number does."""
MAX_VALUES: Final = 1_000_000
"""Commas in a body: tokens, mostly."""
MAX_STRINGS: Final = 100_000
"""Strings in a body, names included: each costs its parser several times what a number does."""
MAX_FRACTIONS: Final = 500_000
"""Numbers with a fraction, as far as points and commas tell."""
_SLICE: Final = 64 << 10
_END_OF_STRING: Final = re.compile(rb'(?<!\\)(?:\\\\)*"\s*[,:]')
_UNCOUNTED_BYTES: Final = 96 << 10
"""What is no longer than this cannot have too many values."""


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request body.

    Raises:
        InvalidRequest: not JSON (RFC 8259), nested deeper than MAX_DEPTH, of too many values, or not an object.
    """
    body = parse_json(raw)
    if not isinstance(body, dict):
        raise InvalidRequest(f"The body must be a JSON object, not {type_name(body)}.", code="invalid_json")
    return body


def parse_json(raw: bytes) -> Any:
    """Parse a body, or JSON text within one.

    Raises:
        InvalidRequest: not JSON (RFC 8259), nested deeper than MAX_DEPTH, or of too many values.
    """
    if len(raw) > _UNCOUNTED_BYTES:
        _check_values(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if _deeper_than(value, MAX_DEPTH):
        raise InvalidRequest(f"The body is nested deeper than {MAX_DEPTH} levels.", code="invalid_json")
    return value


def _check_values(raw: bytes) -> None:
    """Refuse what would stop all streams while it is parsed. Characters within strings count: a text has few of them.

    Raises:
        InvalidRequest: more than MAX_CONTAINERS, MAX_VALUES, MAX_FRACTIONS or MAX_STRINGS.
    """
    commas = raw.count(b",")
    for what, limit, count in (
        ("arrays and objects", MAX_CONTAINERS, raw.count(b"[") + raw.count(b"{")),
        ("values", MAX_VALUES, commas),
        ("fractions", MAX_FRACTIONS, min(commas, raw.count(b"."))),
        ("strings", MAX_STRINGS, _strings(raw) if raw.count(b'"') > 2 * MAX_STRINGS else 0),
    ):
        if count > limit:
            raise InvalidRequest(f"The body has more than {limit} {what}.", code="too_many_values")


def _strings(raw: bytes) -> int:
    """Return how many strings end in `raw`, but for the last of each list; quotes within a text are no end of it."""
    return sum(len(_END_OF_STRING.findall(raw, at, at + _SLICE)) for at in range(0, len(raw), _SLICE))


def _deeper_than(value: Any, limit: int) -> bool:
    """Walk level by level (not recursively); lists of scalars, the bulk of token arrays, are skipped fast."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(limit):
        following: list[Any] = []
        for node in level:
            children = node.values() if isinstance(node, dict) else node
            following.extend(child for child in children if isinstance(child, dict | list))
        if not following:
            return False
        level = following
    return True
