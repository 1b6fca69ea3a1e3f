"""Fields of heads, in both directions: what is done with each kind, and what single ones say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

__all__ = [
    "CONNECTION", "DATE", "DROP", "FORWARD", "HOST", "LENGTH", "NOTE", "NOTE_AND_FORWARD", "PLAIN_CONNECTION",
    "RawHeaders", "connection_options", "length_in", "lines_of",
]  # fmt: skip

RawHeaders = Sequence[tuple[bytes, bytes]]

FORWARD: Final = 0
DROP: Final = 1
NOTE: Final = 2
NOTE_AND_FORWARD: Final = 3
CONNECTION: Final = 4
HOST: Final = 5
LENGTH: Final = 6
DATE: Final = 7
PLAIN_CONNECTION: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})
"""What Connection says without naming another field."""


def connection_options(value: bytes) -> set[bytes]:
    """Return the lower-case options of a Connection field's value."""
    return {option.strip().lower() for option in value.split(b",")} - {b""}


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields as they stand in a message head, each ended by CRLF."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


def length_in(value: bytes) -> int:
    """Return the number in a Content-Length that a parser has found to be one, with however many zeros before it."""
    try:
        return int(value)
    except ValueError:
        return int(value.strip().lstrip(b"0") or b"0")
