"""A request as it goes to an upstream, whichever of them it turns out to be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Sequence
from hashlib import blake2b
from typing import Final, Protocol

from proxy.upstream.endpoint import Endpoint
from proxy.wire.base import Call, Repeat, WireFormat
from proxy.wire.naming import TARGET, Named, in_json

__all__ = ["Outgoing", "Upload"]


class Begun(Protocol):
    """What was read of a body already."""

    first: bytes


class Upload(Protocol):
    """A body that is not held in memory. Can be read once."""

    first: bytes
    """What goes on in the place of what was read of it already."""

    @property
    def begun(self) -> Begun | None:
        """What was read of it already; None for nothing."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """Read it, no faster than it is consumed."""
        ...

    def gone(self) -> bool:
        """Whether whoever sends it went away; asked while nobody reads, when nothing else would tell."""
        ...

    @property
    def trailers(self) -> Sequence[tuple[bytes, bytes]]:
        """Fields to send behind it, once it has been read."""
        ...


class Outgoing:
    """Method, target, fields and body of one upstream call.

    `lines` are whole header lines without Host, credential and framing. Exactly one framing is added:
    Content-Length where the length is known, chunked where it is not, none where there is no body.
    """

    __slots__ = (
        "_repeat",
        "authorization",
        "body",
        "call",
        "chunked_upload",
        "expects_continue",
        "hint",
        "is_json",
        "keeper",
        "length",
        "lines",
        "method",
        "named",
        "replayable",
        "target",
        "trailer",
        "upgrade",
        "upload",
        "wire",
    )

    def __init__(
        self,
        method: bytes,
        target: bytes,
        lines: bytes,
        *,
        body: bytes = b"",
        authorization: bytes | None = None,
        replayable: bool = False,
        is_json: bool = False,
        upload: Upload | None = None,
        length: int | None = None,
        expects_continue: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.lines = lines
        self.body = body
        self.authorization = authorization
        """The caller's credential, passed on unless the endpoint has one of its own or strips it."""
        self.replayable = replayable
        """Whether it is held, and may be sent again as long as no upstream has acted on it."""
        self._repeat: int = Repeat.FREELY if replayable else Repeat.NEVER
        self.call: Call | None = None
        """What it asks, where a wire format understood that."""
        self.wire: WireFormat | None = None
        """Who understood it, and will understand the answer."""
        self.is_json = is_json
        """Whether the body is a JSON object that names its model."""
        self.upload = upload
        self.length = length
        """Declared length of the upload; None when it is chunked."""
        self.expects_continue = expects_continue
        self.trailer: bytes | None = None
        """Names of the fields that come behind a chunked upload."""
        self.named: Sequence[Named] = ()
        """Where the model is named, in ascending order of the target's bytes; empty where nobody has looked."""
        self.upgrade: bytes | None = None
        """The protocol to switch to, where the client asked for it."""
        self.keeper: Endpoint | None = None
        """Who keeps what it refers to, so that nobody else is asked; None where that does not matter."""
        self.hint: int | None = None
        """Predicted output tokens, for upstreams that want to know."""

    def means(self, wire: WireFormat, call: Call) -> None:
        """Take note of what a wire format understood of it."""
        self.wire = wire
        self.call = call
        self._repeat = _UNASKED

    @property
    def repeat(self) -> int:
        """Whether it may be sent again after an upstream may have acted on it: a value of `Repeat`."""
        repeat = self._repeat
        if repeat == _UNASKED:
            assert self.wire is not None
            assert self.call is not None
            repeat = self._repeat = self.wire.repeat(self.call)
        return repeat

    @repeat.setter
    def repeat(self, repeat: int) -> None:
        self._repeat = repeat

    def decide_repeat(self) -> None:
        """Find out whether it may be sent again, while what was parsed is there."""
        self._repeat = self.repeat

    def mark(self) -> str:
        """Return under which name it is remembered that streams of this kind end with a mark."""
        call = self.call
        return "" if call is None else f"{call.route.name} {call.model}"

    def errand(self) -> Hashable | None:
        """Return what must be equal for two requests to be served or turned away alike; None where that is unknown.

        Operation and model, or method and target; and the credential, as a hash.
        """
        call = self.call
        credential = self.authorization or b""
        lower = self.lines.lower()
        for name in _CREDENTIALS:
            if name in lower:
                credential += b"".join([line for line in self.lines.splitlines() if line.lower().startswith(name)])
        if call is None:
            what = b"%b %b" % (self.method, self.target)
            return ("relay", blake2b(what, digest_size=16, key=_short(credential)).digest())
        payload = call.payload
        if type(payload) is dict and any(payload.get(name) for name in _STATE):
            return None
        what = call.model.encode("utf-8", "surrogatepass")
        return (call.route.name, blake2b(what, digest_size=16, key=_short(credential)).digest())

    def encode(self, endpoint: Endpoint) -> tuple[bytes, bytes]:
        """Return the head and the body for `endpoint`; the body is empty for an upload."""
        target, body, length = self.target, self.body, self.length
        if self.upload is not None and self.upload.begun is not None:
            self.upload.first = self.upload.begun.first
        if endpoint.model is not None:
            target, body, length = self._renamed(endpoint.model)
        if self.upload is not None:
            framing = b"Transfer-Encoding: chunked\r\n" if length is None else b"Content-Length: %d\r\n" % length
            if self.trailer is not None and self.length is None:
                framing += b"Trailer: %b\r\n" % self.trailer
            if self.expects_continue:
                framing += b"Expect: 100-continue\r\n"
        elif body or self.method not in _BODILESS:
            framing = b"Content-Length: %d\r\n" % len(body)
        else:
            framing = b""
        if self.upgrade is not None:
            framing += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % self.upgrade
        if self.hint is not None and endpoint.hints:
            framing += b"X-Trimtab-Predicted-Tokens: %d\r\n" % self.hint
        lines, credential = self.lines, self.authorization
        if endpoint.credential is not None or endpoint.strips_credentials:
            lines, credential = self._with_own_credential(endpoint)
        head = b"%b %b%b%b%b%b%b\r\n" % (
            self.method,
            endpoint.prefix if not endpoint.versioned else endpoint.address.prefix_for(target),
            target,
            endpoint.host_line,
            lines,
            b"Authorization: %b\r\n" % credential if credential else b"",
            framing,
        )
        return head, body

    def _renamed(self, model: str) -> tuple[bytes, bytes, int | None]:
        """Return target, body and length of the upload with `model` in the place of the caller's."""
        target, body, length, upload = self.target, self.body, self.length, self.upload
        inside: Named | None = None
        for named in reversed(self.named):
            if named.place == TARGET:
                target = named.replaced(target, model)
            else:
                inside = named
        if inside is None and not self.named and self.is_json and body:
            # What was merged is written by us: nobody has looked for its model yet.
            inside = in_json(body)
        if inside is not None and upload is not None and upload.begun is not None:
            first = upload.first = inside.replaced(upload.begun.first, model)
            if length is not None:
                length += len(first) - len(upload.begun.first)
        elif inside is not None:
            body = inside.replaced(body, model)
        return target, body, length

    def _with_own_credential(self, endpoint: Endpoint) -> tuple[bytes, bytes | None]:
        """Return the lines with the endpoint's credential in the place of the caller's, and Authorization's value.

        The caller's others go on only where the endpoint does not strip them; what has the same name never does.
        """
        lines, credential, own = self.lines, self.authorization, endpoint.credential or b""
        name = own[: own.find(b":") + 1].lower()
        if endpoint.strips_credentials or name == b"authorization:":
            credential = None
        dropped: tuple[bytes, ...] = _CREDENTIALS if endpoint.strips_credentials else ()
        if name and name not in dropped:
            dropped = (*dropped, name)
        lower = lines.lower()
        if any(field in lower for field in dropped):
            lines = b"".join([line for line in lines.splitlines(True) if not line.lower().startswith(dropped)])
        return lines + own, credential


def _short(credential: bytes) -> bytes:
    return blake2b(credential, digest_size=32).digest()


_UNASKED: Final = -1
"""Stands for what the wire format says, which nobody asks before something fails."""
_STATE = ("previous_response_id", "conversation")
"""Fields that name what only the upstream that made it knows."""
_CREDENTIALS: Final = (b"x-api-key:", b"api-key:")
_BODILESS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"})
