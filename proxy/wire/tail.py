"""Reading usage off the end of a JSON answer, without parsing or keeping the rest."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import orjson

from proxy.wire.base import Tap, Usage

__all__ = ["TailTap", "count", "last_object", "last_scalar", "read_usage"]

KEPT = 16_384
"""Bytes kept of the end of an answer."""

_SMALL = 2_048
"""Up to so many bytes, parsing all of an answer is cheaper than searching it."""

ATTEMPTS = 8
"""How many members of the name are tried, from the last one back: an adversarial answer must not cost much."""

_BRACES = re.compile(rb"[{}]")
_OBJECT = re.compile(rb"\s*:\s*\{")
_SCALAR = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*)')


class TailTap(Tap):
    """Keeps the last KEPT bytes of an answer and looks for usage in them when asked.

    A key with its colon cannot occur inside a JSON string, where quotes are escaped, so searching the raw tail
    finds real members only. A compressed answer holds none and counts nothing.
    """

    __slots__ = ("_pieces", "_read", "_size")

    def __init__(self, read: Callable[[bytes], Usage] | None = None) -> None:
        """`read` finds the counts in the tail; without it, OpenAI's names are looked for."""
        self._read = read or read_usage
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Keep the end of what has passed so far."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > 4 * KEPT or len(self._pieces) > 64:
            self._pieces = [self.tail()]
            self._size = len(self._pieces[0])

    def tail(self) -> bytes:
        """Return the last KEPT bytes, or all when there are fewer."""
        return b"".join(self._pieces)[-KEPT:]

    def usage(self) -> Usage:
        """Return the counts that the end of the answer holds."""
        pieces = self._pieces
        return self._read(pieces[0] if len(pieces) == 1 and self._size <= KEPT else self.tail())


def last_object(data: bytes, name: bytes) -> dict[str, Any] | None:
    """Return the last complete object that is the value of a member called `name`; None when there is none."""
    end = len(data)
    needle = b'"' + name + b'"'
    for _ in range(ATTEMPTS):
        end = at = data.rfind(needle, 0, end)
        if at < 0:
            break
        found = _OBJECT.match(data, at + len(needle))
        if found is None:
            continue
        start = found.end() - 1
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
        found = _SCALAR.match(data, at + len(needle))
        if found:
            try:
                return orjson.loads(found.group(1))
            except orjson.JSONDecodeError:
                continue
    return None


def read_usage(data: bytes) -> Usage:
    """Read OpenAI-shaped usage and the finish reason from the end of an answer or from one event."""
    if len(data) <= _SMALL and (found := _read_whole(data)) is not None:
        return found
    usage, finish = last_object(data, b"usage"), last_scalar(data, b"finish_reason")
    if type(finish) is not str:
        finish = None
    if usage is None:
        return Usage(None, None, finish)
    return Usage(
        count(usage, "prompt_tokens", "input_tokens"), count(usage, "completion_tokens", "output_tokens"), finish
    )


def _read_whole(data: bytes) -> Usage | None:
    """Read an answer that is all there in the usual shape; None for any other, which must be searched."""
    try:
        answer = orjson.loads(data)
        usage, finish = answer["usage"], answer["choices"][-1]["finish_reason"]
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
    except (orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    if type(prompt) is int and type(output) is int and type(finish) is str and prompt >= 0 and output >= 0:
        return Usage(prompt, output, finish)
    return None


def count(usage: dict[str, Any], *names: str) -> int | None:
    """Return the first of the named members that is a count, None when none is."""
    for name in names:
        value = usage.get(name)
        if type(value) is int and value >= 0:
            return value
    return None
