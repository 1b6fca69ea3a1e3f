"""A request as it goes to an upstream, whichever of them it turns out to be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import orjson

from proxy.upstream.endpoint import Endpoint

__all__ = ["Outgoing", "Upload"]


class Upload(Protocol):
    """A body that is not held in memory. Can be read once."""

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
        "authorization",
        "body",
        "chunked_upload",
        "expects_continue",
        "hint",
        "is_json",
        "length",
        "lines",
        "method",
        "replayable",
        "target",
        "trailer",
        "upgrade",
        "upload",
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
        """Whether sending it twice does no harm."""
        self.is_json = is_json
        """Whether the body is a JSON object that names its model."""
        self.upload = upload
        self.length = length
        """Declared length of the upload; None when it is chunked."""
        self.expects_continue = expects_continue
        self.trailer: bytes | None = None
        """Names of the fields that come behind a chunked upload."""
        self.upgrade: bytes | None = None
        """The protocol to switch to, where the client asked for it."""
        self.hint: int | None = None
        """Predicted output tokens, for upstreams that want to know."""

    def encode(self, endpoint: Endpoint) -> tuple[bytes, bytes]:
        """Return the head and the body for `endpoint`; the body is empty for an upload."""
        body = self.body
        if endpoint.model is not None and self.is_json and body:
            body = _with_model(body, endpoint.model)
        if self.upload is not None:
            framing = (
                b"Transfer-Encoding: chunked\r\n" if self.length is None else b"Content-Length: %d\r\n" % self.length
            )
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
            endpoint.address.prefix,
            self.target,
            endpoint.host_line,
            lines,
            b"Authorization: %b\r\n" % credential if credential else b"",
            framing,
        )
        return head, body

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


_CREDENTIALS = (b"x-api-key:", b"api-key:")
_BODILESS = frozenset({b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"})


def _with_model(body: bytes, model: str) -> bytes:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(document, dict) or "model" not in document:
        return body
    document["model"] = model
    return orjson.dumps(document)
