"""Reading usage off the end of a JSON answer, without parsing or keeping the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import orjson

from proxy.wire.base import LARGEST_COUNT, Tap, Usage

__all__ = ["TailTap", "count", "last_object", "last_scalar", "read_usage"]

KEPT: Final = 16_384
"""Bytes kept of the end of an answer."""

BEGUN: Final = 2_048
"""Bytes kept of its beginning."""

ATTEMPTS: Final = 8
"""How many members of the name are tried, from the last one back: an adversarial answer must not cost much."""

_BRACES: Final = re.compile(rb"[{}]")
_SCALAR: Final = re.compile(rb'("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)')
_BACKSLASH: Final = 0x5C
_COLON: Final = 0x3A
_COMMA: Final = 0x2C
_QUOTE: Final = 0x22
_OPENING: Final = 0x7B
_SPACE: Final = 0x20
"""Bytes by their numbers: compiled, comparing those is free."""


class TailTap(Tap):
    """Keeps the last KEPT bytes of an answer and its first BEGUN, and looks for usage in them when asked.

    A key with its colon cannot occur inside a JSON string, where quotes are escaped, so searching the raw tail
    finds real members only. A compressed answer holds none and counts nothing.
    """

    __slots__ = ("_begun", "_pieces", "_size", "_with")

    def __init__(self, read: Callable[[bytes], Usage] | None = None) -> None:
        """`read` finds the counts in the tail; without it, OpenAI's names are looked for."""
        self._with = read
        self._begun = b""
        """The first BEGUN bytes, once something has been forgotten."""
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Keep the end of what has passed so far."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > 4 * KEPT or len(self._pieces) > 64:
            kept = b"".join(self._pieces)
            if not self._begun:
                self._begun = kept[:BEGUN]
            self._pieces = [kept[-KEPT:]]
            self._size = len(self._pieces[0])

    def tail(self) -> bytes:
        """Return the last KEPT bytes, or all when there are fewer."""
        return b"".join(self._pieces)[-KEPT:]

    def _found(self, data: bytes) -> Usage:
        return read_usage(data) if self._with is None else self._with(data)

    def usage(self) -> Usage:
        """Return the counts that the end of the answer holds, or where it holds none its beginning.

        Some servers write usage before a long list of results.
        """
        pieces = self._pieces
        if len(pieces) == 1 and self._size <= KEPT and not self._begun:
            return self._found(pieces[0])
        kept = b"".join(pieces)
        found = self._found(kept[-KEPT:])
        if found.prompt_tokens is None and found.output_tokens is None:
            begun = self._found(self._begun or kept[:BEGUN])
            return Usage(begun.prompt_tokens, begun.output_tokens, found.finish_reason or begun.finish_reason)
        return found


def last_object(data: bytes, name: bytes) -> dict[str, Any] | None:
    """Return the last complete object that is the value of a member called `name`; None when there is none."""
    end = len(data)
    needle = b'"' + name + b'"'
    for _ in range(ATTEMPTS):
        end = at = data.rfind(needle, 0, end)
        if at < 0:
            break
        start = _value(data, at + len(needle))
        if start == 0 or data[start] != _OPENING:
            continue
        close = data.find(b"}", start)
        if close >= 0 and data.find(b"{", start + 1, close) < 0:
            # Most are flat, and end at the first brace.
            try:
                flat: dict[str, Any] = orjson.loads(data[start : close + 1])
            except orjson.JSONDecodeError:
                continue
            return flat
        depth = 0
        for brace in _BRACES.finditer(data, start):
            depth += 1 if brace.group() == b"{" else -1
            if depth == 0:
                try:
                    value: dict[str, Any] = orjson.loads(data[start : brace.end()])
                except orjson.JSONDecodeError:
                    break  # a brace inside a string: not the flat counts we look for
                return value
    return None


def last_scalar(data: bytes, name: bytes) -> Any:
    """Return the value of the last member called `name` that is a string or a number; None when there is none."""
    end = len(data)
    needle = b'"' + name + b'"'
    for _ in range(ATTEMPTS):
        end = at = data.rfind(needle, 0, end)
        if at < 0:
            break
        start = _value(data, at + len(needle))
        if start == 0:
            continue
        if data[start] == _QUOTE:
            # Most are plain words.
            close = data.find(b'"', start + 1)
            word = data[start + 1 : close] if close > 0 else b"\\"
            if _BACKSLASH not in word and word.isascii():
                return word.decode("ascii")
        found = _SCALAR.match(data, start)
        if found:
            try:
                return orjson.loads(found.group(1))
            except orjson.JSONDecodeError:
                continue
    return None


def _value(data: bytes, at: int) -> int:
    """Return where the value begins of a member whose name ends at `at`; 0 when that was no name."""
    size = len(data)
    while at < size and data[at] <= _SPACE:
        at += 1
    if at >= size or data[at] != _COLON:
        return 0
    at += 1
    while at < size and data[at] <= _SPACE:
        at += 1
    return at if at < size else 0


def read_usage(data: bytes) -> Usage:
    """Read OpenAI-shaped usage and the finish reason from the end of an answer or from one event."""
    return _read_usual(data) or _read_any(data)


def _read_usual(data: bytes) -> Usage | None:
    """Read what most servers write: without spaces, the reason before the usage, and no details in that.

    None for anything else. A third of what looking for members costs, and that is a tenth of a whole request.
    """
    before, found, after = data.rpartition(b'"usage":{')
    usage, end, _ = after.partition(b"}")
    if not found or not end or _OPENING in usage:
        return None
    prompt, output = _counted(usage, b'"prompt_tokens":'), _counted(usage, b'"completion_tokens":')
    _, found, after = before.rpartition(b'"finish_reason":"')
    reason, end, _ = after.partition(b'"')
    if prompt < 0 or output < 0 or not found or not end or _BACKSLASH in reason or not reason.isascii():
        return None
    return Usage(prompt, output, reason.decode("ascii"))


def _counted(usage: bytes, name: bytes) -> int:
    """Return the count that follows `name`; -1 where there is none."""
    _, found, rest = usage.partition(name)
    at, size, total = 0, len(rest), 0
    while at < size and 0x30 <= (digit := rest[at]) <= 0x39:
        total = 10 * total + digit - 0x30
        at += 1
        if total > LARGEST_COUNT:
            return -1
    return total if found and at and (at == size or rest[at] == _COMMA) else -1


def _read_any(data: bytes) -> Usage:
    """Read usage and the finish reason wherever they are the last members of their names."""
    usage, finish = last_object(data, b"usage"), last_scalar(data, b"finish_reason")
    if type(finish) is not str:
        finish = None
    if usage is None:
        return Usage(None, None, finish)
    return Usage(
        count(usage, "prompt_tokens", "input_tokens"), count(usage, "completion_tokens", "output_tokens"), finish
    )


def count(usage: dict[str, Any], *names: str) -> int | None:
    """Return the first of the named members that is a count, None when none is."""
    for name in names:
        value = usage.get(name)
        if type(value) is int and 0 <= value <= LARGEST_COUNT:
            return value
    return None
