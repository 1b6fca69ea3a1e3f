"""What an answer's head says: the lines that go to the client, and how its body is framed (RFC 9110 section 7.6).

Order, spelling and duplicates of what is passed on are kept.
"""

from __future__ import annotations

from typing import Final

from proxy.http.fields import (
    CONNECTION,
    DATE,
    DROP,
    FORWARD,
    LENGTH,
    NOTE,
    NOTE_AND_FORWARD,
    PLAIN_CONNECTION,
    RawHeaders,
    connection_options,
    length_in,
    lines_of,
)

__all__ = ["ResponseFields"]

_RESPONSE: dict[bytes, int] = {
    b"connection": CONNECTION,
    b"keep-alive": DROP,
    b"proxy-connection": DROP,
    b"proxy-authenticate": DROP,
    b"te": DROP,
    b"upgrade": DROP,
    b"transfer-encoding": NOTE,
    b"content-length": LENGTH,
    b"date": DATE,
    b"content-type": NOTE_AND_FORWARD,
    b"retry-after": NOTE_AND_FORWARD,
    b"x-request-id": NOTE_AND_FORWARD,
    b"content-encoding": NOTE_AND_FORWARD,
    b"access-control-allow-origin": NOTE_AND_FORWARD,
}


class ResponseFields:
    """An answer's fields: the lines that go to the client, and what they say about the body.

    Immutable, and without the values of Content-Length and Date, so that one object serves every answer of a
    connection whose fields are `same_as` the ones before: servers repeat themselves even more than clients.
    """

    __slots__ = (
        "_after",
        "_before",
        "_date_at",
        "_length_at",
        "_raw",
        "_varying",
        "any_origin",
        "chunked",
        "coded",
        "content_type",
        "encoded",
        "fields",
        "has_request_id",
        "is_event_stream",
        "retry_after",
    )

    def __init__(self, headers: RawHeaders) -> None:
        fields: list[tuple[bytes, bytes]] = []
        named: set[bytes] | None = None
        kind_of_body = b""
        self._length_at = self._date_at = -1
        self.chunked = False
        self.coded = False
        """Whether it is in a transfer coding besides chunked."""
        self.retry_after: bytes | None = None
        self.has_request_id = False
        self.any_origin = False
        """Whether web pages of any origin may read it."""
        self.encoded = False
        """Whether the body is compressed, so that nothing can be put into it."""
        kinds = _RESPONSE
        for index, field in enumerate(headers):
            name = field[0].lower()
            kind = kinds.get(name, FORWARD)
            if kind == FORWARD:
                fields.append(field)
            elif kind == NOTE_AND_FORWARD:
                fields.append(field)
                if name == b"content-type":
                    kind_of_body = field[1]
                elif name == b"retry-after":
                    self.retry_after = field[1]
                elif name == b"x-request-id":
                    self.has_request_id = True
                elif name == b"access-control-allow-origin":
                    self.any_origin = field[1].strip() == b"*"
                else:
                    self.encoded = field[1].strip().lower() != b"identity"
            elif kind == DATE:
                fields.append(field)
                self._date_at = index if self._date_at < 0 else -2
            elif kind == LENGTH:
                self._length_at = index
            elif kind == NOTE:
                coding = field[1].strip().lower()
                self.coded = self.coded or self.chunked or coding not in _CODINGS
                self.chunked = coding == b"chunked"
            elif kind == CONNECTION and field[1] not in PLAIN_CONNECTION:
                named = connection_options(field[1]) | (named or set())
        if named:
            fields = [field for field in fields if field[0].lower() not in named]
        if self._date_at < 0 or (named and b"date" in named):
            self._date_at = -1
        self._raw = headers
        self._varying = tuple(sorted(at for at in (self._length_at, self._date_at) if at >= 0))
        self.fields = fields
        """The end-to-end fields as they came first; later ones differ in Date at most."""
        self.content_type = kind_of_body.decode("latin-1")
        self.is_event_stream = self.content_type[:24].lower().startswith(_EVENT_STREAMS)
        """Whether the body is a stream of events: server-sent, or one JSON document a line."""
        split = len(fields) if self._date_at < 0 else fields.index(headers[self._date_at])
        self._before = lines_of(fields[:split])
        self._after = lines_of(fields[split + 1 :])

    def get(self, name: bytes) -> bytes:
        """Return the first value of an end-to-end field (lower-case `name`), b"" where there is none."""
        return next((value for key, value in self.fields if key.lower() == name), b"")

    def same_as(self, headers: RawHeaders) -> bool:
        """Tell whether `headers` are these again, but for the values of Content-Length and Date."""
        mine, start = self._raw, 0
        if len(headers) != len(mine):
            return False
        for at in self._varying:
            if headers[at][0] != mine[at][0] or headers[start:at] != mine[start:at]:
                return False
            start = at + 1
        return headers[start:] == mine[start:]

    def length_of(self, headers: RawHeaders) -> int | None:
        """Return the Content-Length among `headers`, which are the `same_as` these; None when there is none."""
        return None if self._length_at < 0 else length_in(headers[self._length_at][1])

    def lines(self, headers: RawHeaders) -> bytes:
        """Return the end-to-end lines of `headers`, which are the `same_as` these, each ended by CRLF."""
        if self._date_at < 0:
            return self._before
        return b"%b%b: %b\r\n%b" % (self._before, *headers[self._date_at], self._after)


_CODINGS: Final = frozenset({b"chunked", b"identity"})
"""Transfer codings that leave a body as it is."""
_EVENT_STREAMS: Final = ("text/event-stream", "application/x-ndjson", "application/stream+json")
