"""Header fields on their way through: RFC 9110 section 7.6, one framing, and our own additions.

Both directions are one pass over the raw fields. Order, spelling and duplicates of what is passed on are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["RawHeaders", "RequestFields", "ResponseFields", "connection_options", "lines_of"]

RawHeaders = Sequence[tuple[bytes, bytes]]

_FORWARD, _DROP, _NOTE, _NOTE_AND_FORWARD, _CONNECTION, _HOST = range(6)

# RFC 9110 section 7.6.1: fields that speak about one connection, whether or not Connection names them; then
# fields that are written anew for the next hop; then fields whose values we need.
_REQUEST: dict[bytes, int] = {
    b"connection": _CONNECTION,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authorization": _DROP,
    b"te": _DROP,
    b"trailer": _DROP,
    b"transfer-encoding": _NOTE,
    b"upgrade": _NOTE,
    b"content-length": _NOTE,
    b"host": _HOST,
    b"expect": _NOTE,
    b"via": _NOTE,
    b"x-forwarded-for": _NOTE,
    b"x-forwarded-host": _NOTE,
    b"x-forwarded-proto": _NOTE,
    b"x-request-id": _NOTE,
    b"x-slo-ttft-ms": _NOTE,
    b"authorization": _NOTE,
    b"content-type": _NOTE_AND_FORWARD,
}
_INTERNAL_PREFIX = b"x-trimtab-"

_RESPONSE: dict[bytes, int] = {
    b"connection": _CONNECTION,
    b"keep-alive": _DROP,
    b"proxy-connection": _DROP,
    b"proxy-authenticate": _DROP,
    b"te": _DROP,
    b"upgrade": _DROP,
    b"transfer-encoding": _NOTE,
    b"content-length": _NOTE,
    b"content-type": _NOTE_AND_FORWARD,
    b"retry-after": _NOTE_AND_FORWARD,
    b"x-request-id": _NOTE_AND_FORWARD,
}

_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


def connection_options(value: bytes) -> set[bytes]:
    """Return the lower-case options of a Connection field's value."""
    return {option.strip().lower() for option in value.split(b",")} - {b""}


def lines_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return fields as they stand in a message head, each ended by CRLF."""
    return b"".join([b"%b: %b\r\n" % field for field in headers])


class RequestFields:
    """A request's fields, sorted into those that go on and those that were meant for us."""

    __slots__ = ("_noted", "forwarded", "hosts", "named")

    def __init__(self, headers: RawHeaders) -> None:
        forwarded: list[tuple[bytes, bytes]] = []
        noted: dict[bytes, bytes] = {}
        named: set[bytes] | None = None
        hosts = 0
        kinds = _REQUEST
        for field in headers:
            name = field[0].lower()
            kind = kinds.get(name, _FORWARD)
            if kind == _FORWARD:
                if name.startswith(_INTERNAL_PREFIX):
                    noted.setdefault(name, field[1])
                else:
                    forwarded.append(field)
            elif kind in (_NOTE, _NOTE_AND_FORWARD):
                if name in noted and name in _LISTS:
                    noted[name] = noted[name] + b", " + field[1]
                else:
                    noted.setdefault(name, field[1])
                if kind == _NOTE_AND_FORWARD:
                    forwarded.append(field)
            elif kind == _HOST:
                hosts += 1
                noted[name] = field[1]
            elif kind == _CONNECTION and field[1] not in _PLAIN_CONNECTION:
                named = connection_options(field[1]) | (named or set())
        if named:
            forwarded = [field for field in forwarded if field[0].lower() not in named]
            for name in named & _STRIPPABLE:
                noted.pop(name, None)
        self.forwarded = forwarded
        self.hosts = hosts
        """How many Host fields there were."""
        self.named = named
        """Options of Connection beyond keep-alive and close; None when there were none."""
        self._noted = noted

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field that was noted (lower-case `name`); lists are joined."""
        return self._noted.get(name)

    def text(self, name: bytes) -> str | None:
        """Return the same as text."""
        value = self._noted.get(name)
        return None if value is None else value.decode("latin-1").strip()

    def positive_number(self, name: bytes) -> float | None:
        """Return the same as a number above 0; None when it is absent or no such number."""
        value = self._noted.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            return None
        return number if 0.0 < number < 1e12 else None

    def next_hop(self, *, peer: str, scheme: str, request_id: str) -> list[bytes]:
        """Return the lines for the upstream, without Host, credential and framing, each ended by CRLF."""
        noted = self._noted
        lines = [b"%b: %b\r\n" % field for field in self.forwarded]
        chain = noted.get(b"x-forwarded-for")
        peer_bytes = peer.encode("latin-1")
        via = noted.get(b"via")
        lines.append(
            b"X-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\nVia: %b\r\nX-Request-Id: %b\r\n"
            % (
                peer_bytes if chain is None else b"%b, %b" % (chain, peer_bytes),
                noted.get(b"x-forwarded-host") or noted.get(b"host", b""),
                noted.get(b"x-forwarded-proto") or scheme.encode(),
                b"1.1 trimtab" if via is None else b"%b, 1.1 trimtab" % via,
                request_id.encode("latin-1"),
            )
        )
        return lines


_LISTS = frozenset({b"via", b"x-forwarded-for", b"transfer-encoding", b"expect", b"upgrade"})
_STRIPPABLE = frozenset({b"authorization", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})


class ResponseFields:
    """An answer's fields: the lines that go to the client, and what they say about the body."""

    __slots__ = ("chunked", "content_length", "content_type", "fields", "has_request_id", "retry_after")

    def __init__(self, headers: RawHeaders) -> None:
        fields: list[tuple[bytes, bytes]] = []
        named: set[bytes] | None = None
        self.content_length: int | None = None
        self.content_type = b""
        self.chunked = False
        self.retry_after: bytes | None = None
        self.has_request_id = False
        kinds = _RESPONSE
        for field in headers:
            name = field[0].lower()
            kind = kinds.get(name, _FORWARD)
            if kind == _FORWARD:
                fields.append(field)
            elif kind == _NOTE_AND_FORWARD:
                fields.append(field)
                if name == b"content-type":
                    self.content_type = field[1]
                elif name == b"retry-after":
                    self.retry_after = field[1]
                else:
                    self.has_request_id = True
            elif kind == _NOTE:
                if name == b"content-length":
                    self.content_length = int(field[1])
                else:
                    self.chunked = field[1].rstrip().lower().endswith(b"chunked")
            elif kind == _CONNECTION and field[1] not in _PLAIN_CONNECTION:
                named = connection_options(field[1]) | (named or set())
        if named:
            fields = [field for field in fields if field[0].lower() not in named]
        self.fields = fields

    @property
    def is_event_stream(self) -> bool:
        """Whether the body is a stream of events: server-sent, or one JSON document a line."""
        kind = self.content_type[:24].lower()
        return kind.startswith((b"text/event-stream", b"application/x-ndjson", b"application/stream+json"))
