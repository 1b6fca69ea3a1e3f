"""What a request's head says and what is passed on of it: RFC 9110 section 7.6, one framing, and our own additions.

One pass over the raw fields. Order, spelling and duplicates of what is passed on are kept.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from proxy.http.fields import (
    CONNECTION,
    DROP,
    FORWARD,
    HOST,
    LENGTH,
    NOTE,
    NOTE_AND_FORWARD,
    PLAIN_CONNECTION,
    RawHeaders,
    connection_options,
    length_in,
    lines_of,
)
from proxy.outcome import BadInput, Refused

__all__ = ["RequestFields"]

_DECIMAL: Final = re.compile(rb"[ \t]*[0-9]{1,12}(?:\.[0-9]{1,30})?[ \t]*")
"""A number as people write it. Python's own reading takes underscores, exponents and names as well."""

# RFC 9110 section 7.6.1: fields that speak about one connection, whether or not Connection names them; then
# fields that are written anew for the next hop; then fields whose values we need.
_REQUEST: dict[bytes, int] = {
    b"connection": CONNECTION,
    b"keep-alive": DROP,
    b"proxy-connection": DROP,
    b"proxy-authorization": DROP,
    b"te": NOTE,
    b"trailer": NOTE,
    b"transfer-encoding": NOTE,
    b"upgrade": NOTE,
    b"content-length": LENGTH,
    b"host": HOST,
    b"expect": NOTE,
    b"via": NOTE,
    b"x-forwarded-for": NOTE,
    b"x-forwarded-host": NOTE,
    b"x-forwarded-proto": NOTE,
    b"x-request-id": NOTE,
    b"x-slo-ttft-ms": NOTE,
    b"authorization": NOTE,
    b"content-type": NOTE_AND_FORWARD,
    b"origin": NOTE_AND_FORWARD,
    b"access-control-request-headers": NOTE_AND_FORWARD,
    b"access-control-request-method": NOTE_AND_FORWARD,
    b"content-encoding": NOTE_AND_FORWARD,
    b"inference-header-content-length": NOTE_AND_FORWARD,
}
_INTERNAL_PREFIX: Final = b"x-trimtab-"


class RequestFields:
    """A request's fields, sorted into those that go on and those that were meant for us.

    Immutable, and without the value of Content-Length, so that one object serves every request of a connection
    whose fields are `same_as` the one before: clients repeat themselves.
    """

    __slots__ = (
        "_identity",
        "_length_at",
        "_noted",
        "checked",
        "claims",
        "forwarded",
        "hop",
        "hosts",
        "klass",
        "known",
        "named",
        "raw",
        "readable",
        "tenant",
        "timeout_s",
        "ttft_s",
        "wishes",
    )

    def __init__(self, headers: RawHeaders) -> None:
        forwarded: list[tuple[bytes, bytes]] = []
        noted: dict[bytes, bytes] = {}
        named: set[bytes] | None = None
        hosts = 0
        kinds = _REQUEST
        self._length_at = -1
        for index, field in enumerate(headers):
            name = field[0].lower()
            kind = kinds.get(name, FORWARD)
            if kind == FORWARD:
                if name.startswith(_INTERNAL_PREFIX):
                    noted.setdefault(name, field[1])
                else:
                    forwarded.append(field)
            elif kind in (NOTE, NOTE_AND_FORWARD):
                if name in noted and name in _LISTS:
                    noted[name] = noted[name] + b", " + field[1]
                else:
                    noted.setdefault(name, field[1])
                if kind == NOTE_AND_FORWARD:
                    forwarded.append(field)
            elif kind == LENGTH:
                self._length_at = index
            elif kind == HOST:
                hosts += 1
                noted[name] = field[1]
            elif kind == CONNECTION and field[1] not in PLAIN_CONNECTION:
                named = connection_options(field[1]) | (named or set())
        if named:
            forwarded = [field for field in forwarded if field[0].lower() not in named]
            for name in named & _STRIPPABLE:
                noted.pop(name, None)
        self.raw = headers
        """The fields as they came."""
        self._noted = noted
        self.hop: bytes | None = None
        """What `next_hop` returns, once it was asked."""
        self._identity: tuple[object, ...] | None = None
        self.forwarded = forwarded
        self.hosts = hosts
        """How many Host fields there were."""
        self.named = named
        """Options of Connection beyond keep-alive and close; None when there were none."""
        self.readable = b"content-encoding" not in noted and (
            _is_text(noted.get(b"content-type", b"")) or b"inference-header-content-length" in noted
        )
        """Whether the body may be JSON: anything else is not looked into, and never held."""
        self.checked = False
        """Whether somebody has looked at them and found nothing ambiguous."""
        self.known: object | None = None
        """What `proxy.access.keys` found out about the API key; nothing else looks at it."""
        self.klass = self.text(b"x-trimtab-class")
        """The class that the caller asks for."""
        self.tenant = (self.text(b"x-trimtab-tenant") or "")[:_MAX_TENANT]
        """The tenant that the caller claims to be."""
        timeout_ms = self.positive_number(b"x-trimtab-timeout-ms")
        self.timeout_s = None if timeout_ms is None else timeout_ms / 1000.0
        """How long the caller is willing to wait for the whole answer."""
        ttft_ms = self.positive_number(b"x-slo-ttft-ms")
        self.ttft_s = None if ttft_ms is None else ttft_ms / 1000.0
        """How long the caller is willing to wait for the first token: no longer need it be queued."""
        self.claims = self.klass is not None or bool(self.tenant)
        """Whether the caller says as whom or as what it wants to be served."""
        self.wishes = self.klass is not None or any(name in noted for name in _PATIENCE)
        """Whether there is anything of that for `check_patience` and others to look at."""

    def same_as(self, headers: RawHeaders) -> bool:
        """Tell whether `headers` are these again, but for the value of Content-Length."""
        mine, at = self.raw, self._length_at
        if at < 0:
            return headers == mine
        return (
            len(headers) == len(mine)
            and headers[:at] == mine[:at]
            and headers[at][0] == mine[at][0]
            and headers[at + 1 :] == mine[at + 1 :]
        )

    def length_of(self, headers: RawHeaders) -> int | None:
        """Return the Content-Length among `headers`, which are the `same_as` these; None when there is none."""
        return None if self._length_at < 0 else length_in(headers[self._length_at][1])

    @property
    def has_length(self) -> bool:
        """Whether there is a Content-Length."""
        return self._length_at >= 0

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of a field that was noted (lower-case `name`); lists are joined."""
        return self._noted.get(name)

    def text(self, name: bytes) -> str | None:
        """Return the same as text."""
        value = self._noted.get(name)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def says_json(self) -> bool:
        """Whether the body is said to be JSON, or nothing is said about it."""
        return b"json" in self._noted.get(b"content-type", b"json").lower()

    def positive_number(self, name: bytes) -> float | None:
        """Return the same as a number above 0, in digits and perhaps a fraction; None when it is absent or none."""
        value = self._noted.get(name)
        if value is None or _DECIMAL.fullmatch(value) is None:
            return None
        number = float(value)
        return number if number > 0.0 else None

    def check_patience(self) -> None:
        """Refuse a patience that is none; it would wait much longer than its caller. Raises Refused."""
        for name in _PATIENCE:
            if name in self._noted and self.positive_number(name) is None:
                field = name.decode()
                text = (
                    f"{field} must be milliseconds above 0 and below 1e12, such as 2500, not {self.text(name)!r:.60}."
                )
                raise Refused(BadInput(text, field))

    def drop(self, names: Collection[bytes]) -> None:
        """Let no field of these (lower-case) names go on. Only before `next_hop` and `identity` are first asked."""
        self.forwarded = [field for field in self.forwarded if field[0].lower() not in names]
        for name in names:
            self._noted.pop(name, None)

    def replace(self, name: bytes, value: bytes) -> None:
        """Let `value` go on in the place of every field of that (lower-case) name; none where it is empty."""
        self.forwarded = [
            (field[0], value) if field[0].lower() == name else field
            for field in self.forwarded
            if value or field[0].lower() != name
        ]

    def next_hop(self, peer: str, scheme: str) -> bytes:
        """Return the lines for the upstream, each ended by CRLF.

        Not among them: Host, credential and framing, which depend on the upstream, and the request's id. `peer`
        and `scheme` belong to the connection; the first call decides.
        """
        if self.hop is None:
            noted = self._noted
            chain, via, address = noted.get(b"x-forwarded-for"), noted.get(b"via"), peer.encode("latin-1")
            self.hop = b"%bX-Forwarded-For: %b\r\nX-Forwarded-Host: %b\r\nX-Forwarded-Proto: %b\r\nVia: %b\r\n" % (
                lines_of(self.forwarded),
                address if chain is None else b"%b, %b" % (chain, address),
                noted.get(b"x-forwarded-host") or noted.get(b"host", b""),
                noted.get(b"x-forwarded-proto") or scheme.encode(),
                b"1.1 trimtab" if via is None else b"%b, 1.1 trimtab" % via,
            )
            if b"trailers" in connection_options(noted.get(b"te", b"")):
                # We pass them on, so we may ask for them in the client's place (RFC 9110 section 10.1.4).
                self.hop += b"TE: trailers\r\nConnection: TE\r\n"
        return self.hop

    def identity(self) -> tuple[object, ...]:
        """Return what of these fields must be equal for two requests to share an upstream call.

        That is the credential, the host that was asked, the type of the body, and everything that goes on but for
        what differs between callers without making their requests different.
        """
        if self._identity is None:
            noted = self._noted
            own = [
                field
                for field in self.forwarded
                if (name := field[0].lower()) not in _INDIFFERENT
                and not name.startswith(_INDIFFERENT_PREFIX)
                and not (name == b"accept" and _takes_json(field[1]))
            ]
            kind = noted.get(b"content-type")
            host = noted.get(b"x-forwarded-host") or noted.get(b"host")
            is_json = kind is not None and kind.lower().replace(b" ", b"") in _JSON
            self._identity = (noted.get(b"authorization"), host, _JSON if is_json else kind, *own)
        return self._identity


def _is_text(content_type: bytes) -> bool:
    """Tell whether a body of this type may be JSON; clients that forget to say so send text, forms or nothing."""
    kind = content_type.partition(b";")[0].strip().lower()
    if kind.endswith(b"json"):
        return not kind.endswith(b"ndjson")
    return kind in _MAYBE_JSON


_MAYBE_JSON: Final = frozenset({b"", b"*/*", b"text/plain", b"text/json", b"application/x-www-form-urlencoded"})


def _takes_json(accept: bytes) -> bool:
    """Whether a caller with this Accept gets JSON from a server that can give it."""
    return b"json" in accept or b"*/*" in accept


_MAX_TENANT: Final = 128
_PATIENCE: Final = (b"x-trimtab-timeout-ms", b"x-slo-ttft-ms")
_INDIFFERENT: Final = frozenset(
    {
        b"accept-encoding",
        b"accept-language",
        b"baggage",
        b"content-type",
        b"traceparent",
        b"tracestate",
        b"user-agent",
    }
)
_JSON: Final = (b"application/json", b"application/json;charset=utf-8")
_INDIFFERENT_PREFIX: Final = b"x-stainless-"
_LISTS: Final = frozenset(
    {b"via", b"x-forwarded-for", b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"}
)
_STRIPPABLE: Final = frozenset(
    {b"authorization", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
)
