"""Errors that an answer holds although its status says there is none: each protocol's own shape, and nothing like it.

What merely speaks of errors is none: in JSON, the name `"error"` in quotes cannot stand inside a string.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

__all__ = [
    "LARGEST_ERROR",
    "Fault",
    "bare_error",
    "load_error",
    "may_be_error",
    "object_error",
    "status_of",
    "typed_error",
    "unsound",
]

LARGEST_ERROR: Final = 65_536
"""What is longer than this is no error, whatever it holds: they are sentences."""

_NEEDLE: Final = b'"error"'
_NAMES = ("message", "type", "code")
_BESIDE_ERROR = frozenset({"error", "error_type", "message", "detail", "code", "status", "status_code", "type", "id"})
"""What may stand beside a bare `error` without being a result."""
_STATUS_MEMBERS = ("code", "status", "status_code", "http_status")
_STATUSES: dict[str, int] = {
    "invalid_request_error": 400,
    "BadRequestError": 400,
    "validation": 422,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "AuthenticationError": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "NotFoundError": 404,
    "model_not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded": 429,
    "server_error": 500,
    "api_error": 500,
    "InternalServerError": 500,
    "generation": 500,
    "incomplete_generation": 500,
    "timeout_error": 504,
    "service_unavailable": 503,
    "overloaded_error": 529,
}


class Fault(NamedTuple):
    """What an answer says went wrong."""

    status: int
    """The status that it amounts to; 502 where it names none."""
    body: bytes
    """The error in the upstream's own words, JSON as a rule; empty where it has none."""
    kept: bool = False
    """Whether the answer is relayed as it is all the same: it is how the protocol reports a job that failed."""


def may_be_error(data: bytes) -> bool:
    """Tell whether it is worth reading `data` to find an error in it. One search, and no more for healthy answers."""
    return data.find(_NEEDLE) >= 0


def load_error(data: bytes) -> dict[str, Any] | None:
    """Return an object that has a member `error`, or says it is one; None for everything else."""
    if len(data) > LARGEST_ERROR or data.find(_NEEDLE) < 0:
        return None
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return document if type(document) is dict else None


def object_error(document: dict[str, Any]) -> bool:
    """Tell whether it is `{"error": {"message", "type", "code", ...}}`, which OpenAI's and Anthropic's servers write.

    So is `{"object": "error", "message": ...}`, which some wrote before.
    """
    error = document.get("error")
    if type(error) is dict:
        return any(name in error for name in _NAMES)
    return document.get("object") == "error" and "message" in document


def typed_error(document: dict[str, Any]) -> bool:
    """Tell whether it is `{"error": text, "error_type": kind}`, as Hugging Face's servers write."""
    return type(document.get("error")) is str and type(document.get("error_type")) is str


def bare_error(document: dict[str, Any]) -> bool:
    """Tell whether it is `{"error": text}` without any result beside it."""
    error = document.get("error")
    return type(error) is str and error != "" and _BESIDE_ERROR.issuperset(document)


def status_of(document: dict[str, Any]) -> int:
    """Return the status that an error names, by number or by its type; 502 where it names none."""
    error = document.get("error")
    holders = (error, document) if type(error) is dict else (document,)
    for holder in holders:
        for name in _STATUS_MEMBERS:
            value = holder.get(name)
            if type(value) is str and value.isascii() and value.isdigit() and len(value) == 3:
                value = int(value)
            if type(value) is int and 400 <= value <= 599:
                return value
    for holder in holders:
        for name in ("code", "type", "error_type"):
            status = _STATUSES.get(value) if type(value := holder.get(name)) is str else None
            if status is not None:
                return status
    return 502


def unsound(body: bytes) -> bool:
    """Tell whether a body that says it is JSON certainly is none: it is empty, or does not end what it began."""
    text = body if body[-1:] in _ENDS else body.strip()
    if not text:
        return True
    if text[1:2] == b"\x00":
        return False  # UTF-16
    first, last = text[0], text[-1]
    return (first == _BRACE and last != _BRACE_END) or (first == _BRACKET and last != _BRACKET_END)


_BRACE: Final = 0x7B
_BRACE_END: Final = 0x7D
_BRACKET: Final = 0x5B
_BRACKET_END: Final = 0x5D
_ENDS = (b"}", b"]")
