"""Trailer fields of a request's chunked body, which the server's parser does not hand on (RFC 9110 section 6.5)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from aiohttp.http_parser import RawRequestMessage

__all__ = ["AnnouncedTrailers", "TrailerScanner", "passable"]

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_SIZE = re.compile(rb"([0-9a-fA-F]{1,16})(?:[ \t]*;[^\r\n]*)?")
_MAX_BYTES = 16_384
_MAX_FIELDS = 128
_MAX_LINE_BYTES = 16_384

_NEVER = frozenset(
    {
        b"authorization",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-range",
        b"content-type",
        b"cookie",
        b"expect",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"set-cookie",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Fields that frame, route or authenticate: whoever merged them into a head would be misled (section 6.5.1)."""


def passable(fields: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return those of `fields` that may go on as trailers."""
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in _NEVER
        and not name.lower().startswith(b"x-trimtab-")
        and _TOKEN.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]


class TrailerScanner:
    """Follows a chunked body that the server's own parser reads, and keeps the fields behind its last chunk.

    It checks nothing: what is malformed that parser refuses. Whatever it does not understand ends it without fields.
    """

    __slots__ = ("_fields", "_left", "_line", "_section", "done")

    def __init__(self) -> None:
        self._left = 0
        """Bytes of the present chunk still to come, its line end included."""
        self._line = b""
        """A line that has begun."""
        self._section = -1
        """Bytes of the trailer section so far; -1 before it."""
        self._fields: list[tuple[bytes, bytes]] = []
        self.done = False

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """The fields that may go on, once the body is complete."""
        return passable(self._fields) if self.done else []

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the connection."""
        at, size = 0, len(data)
        while at < size and not self.done:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > _MAX_LINE_BYTES:
                    self._give_up()
                return
            line, self._line, at = self._line + data[at:end], b"", end + 1
            self._take(line[:-1] if line.endswith(b"\r") else line)

    def _take(self, line: bytes) -> None:
        if self._section < 0:
            found = _SIZE.fullmatch(line)
            if found is None:
                self._give_up()
                return
            length = int(found[1], 16)
            if length:
                self._left = length + 2
            else:
                self._section = 0
            return
        if not line:
            self.done = True
            return
        self._section += len(line)
        name, colon, value = line.partition(b":")
        if not colon or self._section > _MAX_BYTES or len(self._fields) >= _MAX_FIELDS:
            self._give_up()
            return
        self._fields.append((name, value.strip(b" \t")))

    def _give_up(self) -> None:
        self._fields.clear()
        self.done = True


class AnnouncedTrailers:
    """Looks for the trailer fields that the requests of one connection announce, one request at a time."""

    __slots__ = ("_message", "_scanner", "running")

    def __init__(self) -> None:
        self._message: RawRequestMessage | None = None
        """The latest message that announced some, until it is taken."""
        self._scanner: TrailerScanner | None = None
        self.running = False
        """Whether there is more of it to look at."""

    def begin(self, message: Any, data: bytes) -> None:
        """Look behind the body of `message`, the only one that began in `data`, if it announces trailers.

        Those of a request that came in one read with another are not looked for: it is not clear where each ends.
        """
        if not (isinstance(message, RawRequestMessage) and message.chunked and "Trailer" in message.headers):
            return
        self._message, self._scanner, self.running = message, TrailerScanner(), True
        # A head that came in several pieces may end inside the blank line; then nothing is understood, and lost
        # are the trailers alone.
        self.see(data[data.find(b"\r\n\r\n") + 4 :])

    def see(self, data: bytes) -> None:
        """Look at more; nothing behind the end of the message is looked at."""
        if self._scanner is not None:
            self._scanner.feed(data)
            self.running = not self._scanner.done

    def of(self, message: Any) -> TrailerScanner | None:
        """Return who looks for the trailers of `message`, which is taken now; None where it announced none."""
        if self._message is None or message is not self._message:
            return None
        self._message = None
        return self._scanner
