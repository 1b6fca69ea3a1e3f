"""JSON request bodies: read safely, explained when broken, compared canonically."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from proxy.wire.base import LARGEST_COUNT, BadRequest, Head

__all__ = ["canonical", "load_object", "model_name", "positive", "whole"]

_KEY_BEFORE = re.compile(rb'"((?:[^"\\]|\\.){1,64})"\s*:')
_EXACT_LIMIT: Final = 2.0**53
LONGEST_NAME: Final = 1_024
"""Characters of a model's name: it is a key in what is learned and remembered."""


def load_object(head: Head, body: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for what is relayed unread: compressed bodies, and those that say NaN or Infinity.

    Raises BadRequest, naming the parameter where it can be told, for anything else that is not a JSON object in
    UTF-8. It is `certain` unless some server's parser may read what ours does not: other encodings, byte order marks,
    numbers beyond a double, nesting beyond 1024 levels, bytes behind the document.
    """
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if _is_encoded(head) or _may_say_nan(body):
            return None
        raise _explain(error, body) from None
    if type(payload) is not dict:
        raise BadRequest("the request body must be a JSON object", code="invalid_json")
    return payload


def model_name(payload: Mapping[str, Any]) -> str:
    """Return the `model` of a request, empty when it names none. Raises BadRequest when it is none."""
    model = payload.get("model")
    if type(model) is str:
        if len(model) > LONGEST_NAME:
            text = f"'model' is longer than {LONGEST_NAME} characters"
            raise BadRequest(text, param="model", code="invalid_value")
        return model
    if model is None:
        return ""
    raise BadRequest(
        f"'model' must be a string, not {_kind(model)}", param="model", code="invalid_type", certain=False
    )


def whole(value: Any) -> int | None:
    """Return `value` when it is a whole number from 0 to LARGEST_COUNT, else None."""
    if type(value) is int:
        return value if 0 <= value <= LARGEST_COUNT else None
    if type(value) is float and 0.0 <= value <= LARGEST_COUNT and value.is_integer():
        return int(value)
    return None


def positive(value: Any, default: int, limit: int) -> int:
    """Return a count as the caller gave it, within 1..`limit`; `default` when it gave none we understand."""
    number = whole(value)
    return default if number is None else max(1, min(number, limit))


def canonical(payload: dict[str, Any], without: tuple[str, ...]) -> bytes | None:
    """Return all fields but those in `without` in one canonical spelling, for comparison.

    None when they cannot be compared exactly: integers beyond 64 bits arrive as rounded floats, so two different
    ones could look the same, and very deep nesting cannot be written out.
    """
    left = len(payload)
    for name in without:
        if name in payload:
            left -= 1
    if not left:
        return b"{}"
    rest = {name: value for name, value in payload.items() if name not in without}
    if not _exact(rest):
        return None
    try:
        return orjson.dumps(rest, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return None


def _exact(value: Any) -> bool:
    """Tell whether no number in `value` may have been rounded. Iterative: nesting is the caller's to choose."""
    stack = [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind is float:
            if not -_EXACT_LIMIT < item < _EXACT_LIMIT:
                return False
        elif kind is dict:
            stack.extend(item.values())
        elif kind is list:
            stack.extend(item)
    return True


def _is_encoded(head: Head) -> bool:
    encoding = head.get(b"content-encoding")
    return encoding is not None and encoding.strip().lower() not in ("", "identity")


def _may_say_nan(body: bytes) -> bool:
    """Tell whether a body may be an object but for NaN and Infinity, which TF Serving and servers in Python take.

    We could not write those again, so nothing is merged with it.
    """
    if b"NaN" not in body and b"Infinity" not in body:
        return False
    text = body.strip()
    return text[:1] == b"{" and text[-1:] == b"}" and _is_text(text)


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _explain(error: orjson.JSONDecodeError, body: bytes) -> BadRequest:
    """Turn a parse error into one that names the parameter it is in, as far as the text before it tells."""
    if not body.strip():
        return BadRequest("the request body is empty; a JSON object is needed", code="invalid_json")
    param = None
    # The position counts characters of the text so far, each of up to four bytes.
    known = body[: 4 * error.pos + 4]
    before = known[: error.pos + 1] if known.isascii() else known.decode("utf-8", "replace")[: error.pos + 1].encode()
    for found in _KEY_BEFORE.finditer(before[-4096:]):
        param = found.group(1).decode("utf-8", "replace")
    where = f" (in or after {param!r})" if param else ""
    text = f"the request body is not valid JSON{where}: {error}"
    return BadRequest(text, param=param, code="invalid_json", certain=_is_broken(error, body))


_BROKEN = ("unexpected character", "unexpected end of data", "unclosed string", "invalid literal", "no digit")
"""How orjson begins to say what no reader of JSON takes for JSON."""


def _is_broken(error: orjson.JSONDecodeError, body: bytes) -> bool:
    """Tell whether text is JSON to nobody: in UTF-8, without a byte order mark, and wrong in its syntax."""
    if not error.msg.startswith(_BROKEN) or body[:1] in (b"\xef", b"\xff", b"\xfe") or b"\0" in body[:4]:
        return False
    return _is_text(body)


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), type(value).__name__)
