"""A stretch of JSON deep inside a large body, taken in at once: what is dense would cost most a token at a time.

Nothing here goes through bytes or tokens one by one in Python: strings are split off, what is no bracket or comma is
dropped, and what is balanced is taken away from within until only what was open before, and stays open, is left.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

__all__ = ["STRETCH_BYTES", "Stretch"]

STRETCH_BYTES: Final = 8_192
"""The longest that is taken in at once: at worst a millisecond of work."""

_ROUNDS: Final = 64
_TALL: Final = 16
_TALL_LISTS: Final = b"[" * _TALL + b"]" * _TALL
_TALL_OBJECTS: Final = b"{" * _TALL + b"}" * _TALL
_STRUCTURE: Final = b",[]{}"
_OTHERS: Final = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"
_COMMA: Final = 0x2C
_DELTA: Final = tuple(1 if byte in _OPENING else -1 if byte in _CLOSING else 0 for byte in range(256))


class Stretch:
    """From `start`, outside of strings, to behind the last comma or bracket that can be told before `limit`.

    It ends before a string of `long` bytes or more. `end` equals `start` where nothing could be taken in at once.
    """

    __slots__ = ("closed", "commas", "containers", "end", "opened", "outer_commas", "text_bytes")

    def __init__(self, body: bytes, start: int, limit: int, long: int, depth: int, max_depth: int) -> None:
        """`depth` is the nesting at `start`. What would leave level 2, or go beyond `max_depth`, is not taken in."""
        self.end = start
        self.commas = self.containers = self.text_bytes = 0
        self.closed = self.opened = b""
        """Brackets that close what was open at `start`, and that open what is at `end`, in their order."""
        self.outer_commas = 0
        """Commas at level 2."""
        window = body[start:limit]
        if b"\\" in window:
            # Escapes become what ends no string; outside of strings, where none belong, they are found below.
            window = window.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
        pieces = window.split(b'"')
        outside, inside = pieces[::2], pieces[1::2]
        if len(outside) == len(inside):
            # The last one has no end.
            inside.pop()
        lengths = list(map(len, inside))
        if lengths and max(lengths) >= long:
            first = next(at for at, length in enumerate(lengths) if length >= long)
            outside, lengths = outside[: first + 1], lengths[:first]
        plain = b'"'.join(outside)
        cut = 1 + max(map(plain.rfind, (b",", b"[", b"]", b"{", b"}")))
        plain = plain[:cut]
        if not cut or b"\0" in plain or b"\\" in plain:
            return
        brackets = plain.translate(None, _OTHERS)
        commas = brackets.count(b",")
        left = brackets.translate(None, b",")
        containers = left.count(b"[") + left.count(b"{")
        rounds = 0
        while rounds < _ROUNDS:
            size = len(left)
            if _TALL_LISTS in left:
                left = left.replace(_TALL_LISTS, b"")
            if _TALL_OBJECTS in left:
                left = left.replace(_TALL_OBJECTS, b"")
            left = left.replace(b"[]", b"").replace(b"{}", b"")
            if len(left) == size:
                break
            rounds += 1
        opened = left.lstrip(_CLOSING)
        closed = left[: len(left) - len(opened)]
        if opened.strip(_OPENING) or len(closed) > depth - 2:
            # Brackets that do not match, or are nested in too many ways, or the end of an outermost member's value.
            return
        tallest = 2 * rounds * (_TALL + 1) + len(opened)
        if depth + tallest > max_depth and depth + max(accumulate(map(_DELTA.__getitem__, brackets))) > max_depth:
            return
        strings = plain.count(b'"')
        self.text_bytes = sum(lengths[:strings])
        self.end = start + cut + strings + self.text_bytes
        self.commas, self.containers = commas, containers
        self.closed, self.opened = closed, opened
        if depth - len(closed) == 2:
            self.outer_commas = _commas_at(brackets, 2 - depth)


def _commas_at(brackets: bytes, level: int) -> int:
    """Count commas at a level, relative to the one at the beginning."""
    for _ in range(3):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if b"]" not in brackets and b"}" not in brackets and level == 0:
        return min([at for at in (brackets.find(b"["), brackets.find(b"{")) if at >= 0], default=len(brackets))
    levels = accumulate(map(_DELTA.__getitem__, brackets))
    return sum([1 for byte, at in zip(brackets, levels, strict=True) if byte == _COMMA and at == level])
