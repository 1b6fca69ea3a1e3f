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
_BLANKS: Final = (b" ", b"\t")
_H: Final = 0x48


class MalformedError(ValueError):
    """What came is no answer of HTTP/1, or breaks its own framing."""


class HeadReader:
    """Finds where each head ends and has httptools' parser read it: where the two disagree it is malformed.

    The parser never sees a byte that lies behind the answer, so nothing there can change what was said in it. A head
    that it refuses is read once more after what RFC 9112 has a proxy put right in an answer.
    """

    __slots__ = (
        "_ended",
        "_parser",
        "_pieces",
        "_refused",
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
        self._pieces: list[bytes] = []
        """All of the head that has begun."""
        self._refused = ""
        """What the parser said of it, where it refused a part of it."""
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
            self._forget()
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
        piece = data[start:] if end < 0 else data[start:end]
        if not self._refused:
            self._feed(piece)
        if self._refused:
            if end >= 0:
                self._read_again(b"".join([*self._pieces, piece]))
            elif _ends_lines_otherwise(seam, piece):
                # Its lines end in another way: the end that is waited for may never come.
                raise MalformedError(self._refused)
        elif self._ended != (end >= 0):
            raise MalformedError("it is not clear where the head ends")
        if end < 0:
            self._seam = (seam + piece)[-3:]
            self._pieces.append(piece)
            return -1
        if seam:
            self._forget()
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

    def _feed(self, piece: bytes) -> None:
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self.switched = True
        except httptools.HttpParserError as error:
            self._refused = str(error)
            if not self.reason and not self.headers and piece.find(b"\r\n") < 0:
                # It is the first line, which nobody can put right.
                raise MalformedError(self._refused) from None

    def _read_again(self, head: bytes) -> None:
        """Read a whole head that was refused, put right. Raises MalformedError where it is refused again."""
        refused, self._refused = self._refused, ""
        right = put_right(head)
        if right != head:
            self.reason = b""
            self.headers = []
            self._ended = self._settled = False
            self._parser = httptools.HttpResponseParser(self)
            self._feed(right)
            refused, self._refused = self._refused, ""
        if refused or not self._ended:
            raise MalformedError(refused or "it is not clear where the head ends")

    def _forget(self) -> None:
        self._seam = b""
        self._pieces.clear()
        self._refused = ""

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


def put_right(head: bytes) -> bytes:
    """Return an answer's head as RFC 9112 has a proxy pass it on, where it is told how.

    Folded lines become one (section 5.2), blanks before a colon go (section 5.1), and so does a Content-Length that
    says the same again (RFC 9110 section 8.6).
    """
    lines: list[bytes] = []
    for line in head[:-4].split(b"\r\n"):
        if len(lines) > 1 and line[:1] in _BLANKS:
            lines[-1] = lines[-1].rstrip(b" \t") + b" " + line.strip(b" \t")
        else:
            lines.append(line)
    kept = lines[:1]
    length = b""
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        name = name.rstrip(b" \t")
        if name.lower() == b"content-length":
            said = {part.strip(b" \t") for part in value.split(b",")}
            value = said.pop() if len(said) == 1 else value
            if value == length:
                continue
            length = value
        kept.append(name + colon + value)
    return b"\r\n".join(kept) + _END


def _ends_lines_otherwise(seam: bytes, piece: bytes) -> bool:
    """Tell whether a line of `piece`, behind `seam`, ends in a line feed alone."""
    if seam[-1:] == b"\r":
        piece = b"\r" + piece
    return piece.count(b"\n") != piece.count(b"\r\n")


def _end_of(seam: bytes, data: bytes, start: int) -> int:
    """Return where in `data` the head ends of which `seam` came before; -1 when it does not."""
    if seam:
        found = (seam + data[start : start + 3]).find(_END)
        if found >= 0:
            return start + found + 4 - len(seam)
    found = data.find(_END, start)
    return found + 4 if found >= 0 else -1
