"""Chunked framing at a glance: reads that hold nothing but whole chunks, which is how events of a stream come."""

from __future__ import annotations

from typing import Final

__all__ = ["single_chunk", "whole_chunks"]


def single_chunk(data: bytes) -> bytes:
    """Return what `data` holds if it is one whole chunk in its plainest form, else b""."""
    length = len(data)
    # The length of such a chunk says how it must begin.
    if length < _LONGEST and data.startswith(opening := _OPENINGS[length]) and data.endswith(b"\r\n"):
        return data[len(opening) : -2]
    return b""


def _openings(longest: int) -> list[bytes]:
    """Return by its whole length how a chunk begins; what nothing begins with where no chunk has that length."""
    openings = [b"\0"] * longest
    for size in range(1, longest):
        opening = b"%x\r\n" % size
        length = len(opening) + size + 2
        if length < longest:
            openings[length] = opening
    return openings


_LONGEST: Final = 4096
_OPENINGS: Final = _openings(_LONGEST)
"""Events of streams are short; what is longer takes the way of many chunks."""


def whole_chunks(data: bytes, start: int = 0) -> tuple[int, list[bytes]]:
    """Return the end of the last whole chunk in `data`, and what the chunks from `start` on hold.

    Only chunks in their plainest form count: a size without leading zeros, extensions or capital letters, as
    RFC 9112 section 7.1 has it and every server writes it; so passing them on as they are cannot be misread. The
    last chunk, of size 0, does not count either: what follows it is for a parser.
    """
    pieces: list[bytes] = []
    size_of_data = len(data)
    while start < size_of_data:
        line_end = data.find(b"\r\n", start, start + 10)
        if line_end < 0:
            break
        digits = data[start:line_end]
        try:
            size = int(digits, 16)
        except ValueError:
            break
        body = line_end + 2
        end = body + size
        if size <= 0 or b"%x" % size != digits or data[end : end + 2] != b"\r\n":
            break
        pieces.append(data[body:end])
        start = end + 2
    return start, pieces
