"""Answers as bytes: we write message heads ourselves, so that every field is the upstream's own.

aiohttp's handler contract asks for a response object; as everything has been written by then, `SENT_KEEP` and
`SENT_CLOSE` only say whether the connection goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from proxy.headers import RawHeaders

__all__ = ["SENT_CLOSE", "SENT_KEEP", "head_bytes", "reason_phrase"]

_PHRASES = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_PHRASES[499] = b"Client Closed Request"
_STATUS_LINES = {code: b"HTTP/1.1 %d %b\r\n" % (code, phrase) for code, phrase in _PHRASES.items()}


class _Sent(web.StreamResponse):
    """A response that is on the wire already."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Do nothing: the head has been written."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: the body has been written."""


SENT_KEEP: web.StreamResponse = _Sent(keep_alive=True)
SENT_CLOSE: web.StreamResponse = _Sent(keep_alive=False)


def reason_phrase(status: int) -> bytes:
    """Return the usual phrase of a status code."""
    return _PHRASES.get(status, b"")


def head_bytes(
    status: int,
    phrase: bytes,
    fields: RawHeaders,
    *,
    length: int | None,
    chunked: bool,
    close: bool,
    extra: Sequence[bytes] | Iterable[bytes] = (),
) -> bytes:
    """Return a message head with exactly one framing.

    `length` is the Content-Length to announce, None for none; `extra` are whole lines ended by CRLF.
    """
    line = _STATUS_LINES.get(status)
    if line is None or (phrase and phrase != _PHRASES.get(status)):
        line = b"HTTP/1.1 %d %b\r\n" % (status, phrase)
    parts = [line]
    parts += [b"%b: %b\r\n" % field for field in fields]
    parts += extra
    if length is not None:
        parts.append(b"Content-Length: %d\r\n" % length)
    elif chunked:
        parts.append(b"Transfer-Encoding: chunked\r\n")
    if close:
        parts.append(b"Connection: close\r\n")
    parts.append(b"\r\n")
    return b"".join(parts)
