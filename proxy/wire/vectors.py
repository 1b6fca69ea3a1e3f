"""Answers full of vectors, read without reading the numbers."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from proxy.wire.base import MergeMismatch

__all__ = ["Rows", "load_reply", "load_rows"]

Rows = list[Any]
"""One entry per item: an `orjson.Fragment` of its own bytes, or a parsed value."""


_NUMBERS: Final = frozenset({int, float})
_OPENING: Final = re.compile(rb"\s*:\s*\[")
_FIRST_ROW: Final = re.compile(rb"\s*\[")
_NEXT_ROW: Final = re.compile(rb"\s*,\s*\[")
_END: Final = re.compile(rb"\s*\]")


def load_reply(body: bytes) -> dict[str, Any]:
    """Parse an answer that must be a JSON object. Raises MergeMismatch when it is none."""
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MergeMismatch(f"the answer is not valid JSON: {error}") from None
    if type(envelope) is not dict:
        raise MergeMismatch("the answer is not a JSON object")
    return envelope


def load_rows(body: bytes, member: str | None = None, *, alike: bool = False) -> tuple[dict[str, Any], Rows]:
    """Parse an answer that is a list of rows, or an object whose `member` is one.

    Returns the object without its rows (empty for a bare list) and the rows, which are `orjson.Fragment` where
    they are flat arrays. Raises MergeMismatch when there is no such list, or an entry is no list itself; with
    `alike`, when they are not arrays of numbers of one length. Where results go by position, a server that flattened
    its answer must not pass for one that has a row for every input.
    """
    start = _find_list(body, member)
    found = None if start < 0 else _flat_rows(body, start, alike)
    if found is not None:
        rows, end = found
        if member is None and not body[end:].strip():
            return {}, rows
        if member is not None:
            envelope = _without(body, start, end, member)
            if envelope is not None:
                return envelope, rows
    if member is not None:
        envelope = load_reply(body)
        return envelope, _as_rows(envelope.get(member), alike)
    try:
        return {}, _as_rows(orjson.loads(body), alike)
    except orjson.JSONDecodeError as error:
        raise MergeMismatch(f"the answer is not valid JSON: {error}") from None


def _without(body: bytes, start: int, end: int, member: str) -> dict[str, Any] | None:
    """Parse an object whose list at `start`..`end` is left out; None when that list is not its `member`."""
    try:
        envelope = orjson.loads(body[:start] + b"0" + body[end:])
    except orjson.JSONDecodeError:
        return None
    return envelope if type(envelope) is dict and envelope.get(member) == 0 else None


def _as_rows(value: Any, alike: bool) -> list[Any]:
    if type(value) is not list:
        raise MergeMismatch("the answer holds no list of results")
    if not all(type(row) is list for row in value):
        raise MergeMismatch("a result is no list")
    if alike and (len(set(map(len, value))) > 1 or not all(_NUMBERS.issuperset(map(type, row)) for row in value)):
        raise MergeMismatch("results are not lists of numbers of one length")
    return value


def _find_list(body: bytes, member: str | None) -> int:
    """Return where the list of rows opens, -1 when it cannot be told."""
    if member is None:
        start = len(body) - len(body.lstrip())
        return start if body[start : start + 1] == b"[" else -1
    needle = b'"' + member.encode() + b'"'
    at = body.find(needle)
    opening = _OPENING.match(body, at + len(needle)) if at >= 0 else None
    return opening.end() - 1 if opening else -1


def _flat_rows(body: bytes, start: int, alike: bool) -> tuple[Rows, int] | None:
    """Cut the list that opens at `start` into its rows; None unless every row is an array of plain numbers.

    With `alike`, None also where they are not of one length.
    """
    rows: Rows = []
    commas = -2
    opening = _FIRST_ROW.match(body, start + 1)
    position = start + 1
    while opening is not None:
        first = opening.end() - 1
        last = body.find(b"]", first)
        if last < 0 or body.find(b"[", first + 1, last) >= 0 or body.find(b'"', first, last) >= 0:
            return None
        if alike:
            count = body.count(b",", first, last)
            if not count and not body[first + 1 : last].strip():
                count = -1  # no number at all
            if commas > -2 and count != commas:
                return None
            commas = count
        rows.append(orjson.Fragment(body[first : last + 1]))
        position = last + 1
        opening = _NEXT_ROW.match(body, position)
    closing = _END.match(body, position)
    return (rows, closing.end()) if closing and rows else None
