"""A chunked body (RFC 9112 section 7.1): taken apart, bounded, and over where it is over."""

from __future__ import annotations

import re
from typing import Final

from proxy.upstream.head import MalformedError

__all__ = ["MAX_TRAILERS", "MAX_TRAILER_BYTES", "ChunkedBody"]

MAX_TRAILER_BYTES: Final = 16 * 1024
"""The fields behind an answer may not be longer altogether."""
MAX_TRAILERS: Final = 128
"""Nor more."""
_MAX_LINE: Final = 4 * 1024
"""A chunk's size and its extensions may not be longer; nor may a piece of them be that is kept for the rest."""
_MAX_WASTE: Final = 16 * 1024
"""Bytes of extensions beyond what the chunks themselves are worth."""
_FAIR_LINE: Final = 16
_WORTH: Final = 2

_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?\r\n")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)\r\n")
_CR: Final = 13
_LF: Final = 10


class ChunkedBody:
    """Takes the framing off. Every line is bounded, and so is what extensions may cost over a whole body."""

    __slots__ = ("_left", "_line", "_section", "_waste", "end", "over", "trailers")

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the present chunk still to come, its line end included."""
        self._line = b""
        """A line that has begun."""
        self._section = -1
        """Bytes of the trailer section so far; -1 before it."""
        self._waste = 0
        self.over = False
        self.end = 0
        """Where in the latest data the body ended, once it is `over`."""
        self.trailers: list[tuple[bytes, bytes]] = []

    @property
    def between_chunks(self) -> bool:
        """Whether a chunk comes next, or the last one."""
        return self._left == 0 and self._section < 0 and not self._line

    def feed(self, data: bytes, at: int, pieces: list[bytes]) -> None:
        """Append to `pieces` what the chunks in `data` hold from `at` on, until the body is over.

        Raises MalformedError; what came before the fault has been appended then.
        """
        size = len(data)
        while at < size:
            left = self._left
            if left > 2:
                step = left - 2 if left - 2 < size - at else size - at
                pieces.append(data[at : at + step])
                self._left = left - step
                at += step
            elif left:
                if data[at] != (_CR if left == 2 else _LF):
                    raise MalformedError("a chunk is longer than its size")
                self._left = left - 1
                at += 1
            else:
                newline = data.find(b"\n", at) + 1
                line = self._line + (data[at:newline] if newline else data[at:])
                if len(line) > (_MAX_LINE if self._section < 0 else MAX_TRAILER_BYTES):
                    raise MalformedError("a line of a chunked body is too long")
                if not newline:
                    self._line = line
                    return
                self._line = b""
                at = newline
                if self._section < 0:
                    self._size(line)
                elif line != b"\r\n":
                    self._trailer(line)
                else:
                    self.over = True
                    self.end = at
                    return

    def _size(self, line: bytes) -> None:
        found = _SIZE.fullmatch(line)
        if found is None:
            raise MalformedError("a chunk's size is none")
        size = int(found[1], 16)
        if size == 0:
            self._section = 0
            return
        self._left = size + 2
        waste = self._waste + len(line) - _FAIR_LINE - _WORTH * size
        self._waste = waste if waste > 0 else 0
        if waste > _MAX_WASTE:
            raise MalformedError("chunks are more extension than content")

    def _trailer(self, line: bytes) -> None:
        self._section += len(line)
        if self._section > MAX_TRAILER_BYTES or len(self.trailers) >= MAX_TRAILERS:
            raise MalformedError("too many trailers")
        found = _FIELD.fullmatch(line)
        if found is None:
            raise MalformedError("a trailer is no header line")
        self.trailers.append((found[1], found[2].strip(b" \t")))
