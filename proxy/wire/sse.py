"""Reading server-sent events as they pass by: any chunk split, any line ends, bounded memory."""

from __future__ import annotations

from typing import Final

import orjson
from mypy_extensions import mypyc_attr

from proxy.wire.base import Tap

__all__ = ["KEPT_TAIL", "MAX_EVENT", "SseTap", "comment", "event_data", "event_name", "holds"]

MAX_EVENT: Final = 65_536
"""Events up to this many bytes are kept whole while they are incomplete."""
KEPT_TAIL: Final = 16_384
"""Of longer ones only the end is looked at: that is where protocols put their usage."""
_CR: Final = 13
_LF: Final = 10


@mypyc_attr(allow_interpreted_subclasses=True)
class SseTap(Tap):
    """Cuts a stream into events and hands each complete one to `event`.

    Lines may end in LF, CRLF or CR (WHATWG HTML, section 9.2.6). What `event` sees depends on the bytes alone and
    never on how they were cut into pieces: an event longer than MAX_EVENT is always reduced to its last KEPT_TAIL
    bytes. An event that the stream ends in the middle of is never seen, as the standard has it; one that only lacks
    the blank line is, once the stream is `over`.
    """

    __slots__ = ("_cr", "_partial", "_size", "tokens_seen")

    def __init__(self) -> None:
        self.tokens_seen = 0
        self._partial = bytearray()
        self._size = 0
        """Bytes of the incomplete event, those no longer kept included."""
        self._cr = False
        """The last byte was a CR, whose LF may yet come."""

    def event(self, data: bytes) -> None:
        """Look at one event: its lines, joined by LF, without the blank line. Never empty."""

    def block(self, events: bytes) -> None:
        """Look at whole events that came together. What comes of it must not differ from `event` for each."""
        for piece in events.split(b"\n\n"):
            if piece:
                self._complete(piece)

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the body."""
        if self._cr or _CR in data:
            data = self._unify(data)
        if not self._size:
            # The usual case: whole events, nothing left over from before.
            if data.endswith(b"\n\n"):
                self.block(data)
                return
            data = data.lstrip(b"\n")
        self._append(data)

    def at_boundary(self) -> bool:
        """Whether what has passed so far ends between two events."""
        return not self._size and not self._cr

    def over(self) -> None:
        """Look at a last event that no blank line ends, if it is an end mark or a document."""
        size = self._size
        if 0 < size <= MAX_EVENT:
            event = bytes(self._partial).rstrip(b"\n")
            payload = event_data(event).strip()
            if payload == b"[DONE]" or is_document(payload):
                self._partial.clear()
                self._size = 0
                self.event(event)

    def torn(self) -> bool:
        """Whether what has passed stops in the middle of a line."""
        return self._size > 0 and self._partial[-1] != _LF

    def _complete(self, data: bytes) -> None:
        if data.startswith(b"\n"):
            data = data.lstrip(b"\n")
        if data:
            self.event(data if len(data) <= MAX_EVENT else data[-KEPT_TAIL:])

    def _append(self, data: bytes) -> None:
        """Add to the incomplete event and hand over whatever that completes."""
        if not data:
            return
        if self._size and self._partial[-1] == 10 and data[0] == 10:
            # The blank line itself was cut in two.
            del self._partial[-1]
            self._size -= 1
            self._finish(b"")
            data = data.lstrip(b"\n")
        start = 0
        while (end := data.find(b"\n\n", start)) >= 0:
            self._finish(data[start:end])
            start = end + 2
            while data[start : start + 1] == b"\n":
                start += 1
        rest = data[start:] if start else data
        if rest:
            self._partial += rest
            self._size += len(rest)
            if len(self._partial) > MAX_EVENT + KEPT_TAIL:
                del self._partial[:-KEPT_TAIL]

    def _finish(self, data: bytes) -> None:
        """Complete the event that `data` ends."""
        if not self._size:
            self._complete(data)
            return
        size = self._size + len(data)
        whole = bytes(self._partial) + data
        self._partial.clear()
        self._size = 0
        if size <= MAX_EVENT:
            self._complete(whole)
        else:
            self.event(whole[-KEPT_TAIL:])

    def _unify(self, data: bytes) -> bytes:
        """Turn CRLF and CR into LF, swallowing the LF whose CR ended the piece before."""
        if not data:
            return data
        if self._cr and data[0] == 10:
            data = data[1:]
        self._cr = data[-1:] == b"\r"
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def is_document(payload: bytes) -> bool:
    """Tell whether `payload` is a whole JSON object."""
    if payload[:1] != b"{" or payload[-1:] != b"}":
        return False
    try:
        orjson.loads(payload)
    except orjson.JSONDecodeError:
        return False
    return True


def holds(data: bytes, part: bytes) -> bool:
    """Tell whether `part` is in `data`. What `in` does, which takes it for a number first and costs twice as much."""
    return data.find(part) >= 0


def comment() -> bytes:
    """Return an event that every reader of server-sent events ignores."""
    return b": keep-alive\n\n"


def event_data(event: bytes) -> bytes:
    """Return the data of an event, its lines joined by LF; b"" when it has none (a comment)."""
    if event[:5] == b"data:" and _LF not in event:
        return event[6:] if event[5:6] == b" " else event[5:]
    return b"\n".join(_fields(event, b"data"))


def event_name(event: bytes) -> bytes:
    """Return the event's type, b"" when it names none."""
    names = _fields(event, b"event")
    return names[-1] if names else b""


def _fields(event: bytes, name: bytes) -> list[bytes]:
    values = []
    for line in event.split(b"\n"):
        field, _colon, value = line.partition(b":")
        if field == name:
            values.append(value[1:] if value[:1] == b" " else value)
    return values
