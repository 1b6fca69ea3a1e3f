"""The head of an answer: read to its very end, and not a byte further."""

from __future__ import annotations

from typing import Any, Final

import httptools

__all__ = ["MAX_HEAD_BYTES", "MAX_INTERIM", "HeadReader", "MalformedError"]

MAX_HEAD_BYTES: Final = 64 * 1024
"""An answer's status line and headers may not be longer, those of interim answers in front of it included."""
MAX_INTERIM: Final = 32
"""So many interim answers may stand in front of an answer."""
_END: Final = b"\r\n\r\n"
_H: Final = 0x48


class MalformedError(ValueError):
    """What came is no answer of HTTP/1, or breaks its own framing."""


class HeadReader:
    """Finds where each head ends and has httptools' parser read it: where the two disagree it is malformed.

    The parser never sees a byte that lies behind the answer, so nothing there can change what was said in it.
    """

    __slots__ = (
        "_ended",
        "_parser",
        "_seam",
        "_settled",
        "headers",
        "interim",
        "keep_alive",
        "reason",
        "size",
        "status",
        "switched",
    )

    def __init__(self) -> None:
        self._parser: Any = None
        self._seam = b""
        """The latest bytes of a head that has begun: its end may have begun in them."""
        self._ended = False
        """Whether the parser has found the head's end."""
        self._settled = False
        """Whether the parser expects another head next."""
        self.size = 0
        """Bytes of heads since `begin`."""
        self.interim = 0
        """Interim answers since `begin`."""
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.keep_alive = False
        """Whether the connection may carry another exchange after this answer."""
        self.switched = False
        """Whether what follows is another protocol."""

    def begin(self) -> None:
        """Expect the answer to a request."""
        if self._seam:
            self._seam = b""
            self._parser = None
        self.size = self.interim = 0

    def read(self, data: bytes, start: int) -> int:
        """Read one head from `start` on. Returns where it ends, -1 when more of it is to come.

        Raises MalformedError.
        """
        seam = self._seam
        if not seam:
            # A parser would skip blank lines in front; whoever sent them was talking without being asked.
            if data[start] != _H:
                raise MalformedError("what came does not begin as an answer does")
            self.reason = b""
            self.headers = []
            if self._parser is None:
                self._parser = httptools.HttpResponseParser(self)
        end = _end_of(seam, data, start)
        self.size += (len(data) if end < 0 else end) - start
        if self.size > MAX_HEAD_BYTES:
            raise MalformedError(f"header section longer than {MAX_HEAD_BYTES} bytes")
        self._ended = self._settled = self.switched = False
        try:
            self._parser.feed_data(data[start:] if end < 0 else data[start:end])
        except httptools.HttpParserUpgrade:
            self.switched = True
        except httptools.HttpParserError as error:
            raise MalformedError(str(error)) from None
        if self._ended != (end >= 0):
            raise MalformedError("it is not clear where the head ends")
        if end < 0:
            self._seam = (seam + data[start:])[-3:]
            return -1
        self._seam = b""
        self.status = self._parser.get_status_code()
        if self.status < 200 and self.status != 101:
            self._count_interim()
        return end

    def settle(self, body: bytes) -> None:
        """Have the parser expect another head, after a body in the framing of this one; any will do."""
        if not self._settled and body:
            self._parser.feed_data(body)
        if not self._settled:
            self._parser = None

    def _count_interim(self) -> None:
        self.interim += 1
        if self.status < 100 or self.interim > MAX_INTERIM:
            raise MalformedError(f"status {self.status}" if self.status < 100 else "too many interim answers")
        if not (self._settled and self.keep_alive):
            # It says what holds for the answer that follows, not that there is none.
            self._parser = None

    # -- what the parser calls -----------------------------------------------------------------------------

    def on_status(self, reason: bytes) -> None:
        """Keep a piece of the reason phrase."""
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field."""
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Note that the head is over."""
        self._ended = True
        self.keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        """Note that another head may follow."""
        self._settled = True


def _end_of(seam: bytes, data: bytes, start: int) -> int:
    """Return where in `data` the head ends of which `seam` came before; -1 when it does not."""
    if seam:
        found = (seam + data[start : start + 3]).find(_END)
        if found >= 0:
            return start + found + 4 - len(seam)
    found = data.find(_END, start)
    return found + 4 if found >= 0 else -1
