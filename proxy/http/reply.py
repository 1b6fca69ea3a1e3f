"""Answers as bytes: we write message heads ourselves, so that every field is the upstream's own.

aiohttp's handler contract asks for a response object; as everything has been written by then, `SENT_KEEP` and
`SENT_CLOSE` only say whether the connection goes on.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

__all__ = ["SENT_CLOSE", "SENT_KEEP", "head_bytes"]

_PHRASES: Final = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}
_PHRASES[499] = b"Client Closed Request"
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %b\r\n" % (code, phrase) for code, phrase in _PHRASES.items()}


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


def head_bytes(
    status: int,
    reason: bytes | None,
    lines: bytes,
    *,
    length: int | None = None,
    chunked: bool = False,
    close: bool = False,
) -> bytes:
    """Return a message head with at most one framing.

    `reason` is the phrase to use, which may be empty, None for the usual one; `lines` are whole fields, each ended
    by CRLF; `length` is the Content-Length to announce, None for none.
    """
    line = _STATUS_LINES.get(status)
    if line is None or (reason is not None and reason != _PHRASES[status]):
        line = b"HTTP/1.1 %d %b\r\n" % (status, reason or b"")
    if length is not None:
        framing = b"Content-Length: %d\r\n" % length
    else:
        framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    return b"%b%b%b%b\r\n" % (line, lines, framing, b"Connection: close\r\n" if close else b"")
