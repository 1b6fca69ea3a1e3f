"""The heads of answers that were cut out of one upstream answer."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from proxy.http.fields import lines_of
from proxy.wire.base import Reply

__all__ = ["PartHeads"]

_OF_THE_WHOLE: Final = frozenset(
    {
        b"accept-ranges", b"age", b"content-digest", b"content-disposition", b"content-encoding", b"content-location",
        b"content-md5", b"content-range", b"digest", b"etag", b"last-modified", b"link", b"location", b"repr-digest",
        b"set-cookie", b"signature", b"signature-input", b"traceparent", b"tracestate", b"trailer", b"warning",
        b"x-amzn-trace-id", b"x-b3-traceid", b"x-correlation-id", b"x-request-id", b"x-trace-id",
    }
)  # fmt: skip
"""Fields that speak about the upstream's whole answer or call, or to one caller only: none of a part's."""
_OF_THE_SERVER: Final = frozenset(
    {
        b"allow", b"alt-svc", b"cache-control", b"ce-source", b"ce-specversion", b"ce-type", b"content-language",
        b"content-security-policy", b"date", b"deprecation", b"expires", b"openai-organization", b"openai-version",
        b"permissions-policy", b"pragma", b"referrer-policy", b"retry-after", b"server", b"strict-transport-security",
        b"sunset", b"vary", b"via", b"www-authenticate", b"x-compute-type", b"x-content-type-options",
        b"x-frame-options", b"x-powered-by", b"x-xss-protection",
    }
)  # fmt: skip
"""Fields that speak about the server, and say the same to everybody."""
_FAMILIES: Final = (b"access-control-", b"cross-origin-", b"ratelimit", b"x-ratelimit-")
_TIMES: Final = frozenset(
    {
        b"openai-processing-ms", b"x-compute-time", b"x-envoy-upstream-service-time", b"x-inference-time",
        b"x-process-time", b"x-queue-time", b"x-response-time", b"x-runtime", b"x-tokenization-time", b"x-total-time",
    }
)  # fmt: skip
"""How long the call took, which it did for each; nothing but a number."""
_TIME: Final = re.compile(rb"[0-9]+(?:\.[0-9]+)? *(?:m?s)?")


class PartHeads:
    """Writes each part the fields of the whole answer that are its own as well, in their order.

    Those are the fields that speak of the server. Of fields whose meaning nobody here knows, it is those that an
    earlier answer had with the same value (`constant`): what is the same for different calls belongs to none of them.
    """

    __slots__ = ("_constant", "_content_type", "_names", "_whole", "_without_own", "unknown")

    def __init__(self, lines: bytes, constant: Collection[bytes] = ()) -> None:
        self._whole = lines.splitlines(keepends=True)
        self._constant = constant
        self._content_type: str | None = None
        self._names: tuple[bytes, ...] = ()
        self._without_own = b""
        self.unknown: list[bytes] = []
        """Lines whose meaning nobody here knows, once `lines` was asked."""

    def lines(self, reply: Reply) -> bytes:
        """Return the end-to-end lines of one part, each ended by CRLF."""
        own = reply.headers
        names = tuple([name.lower() for name, _ in own]) if own else ()
        if reply.content_type != self._content_type or names != self._names:
            self._content_type, self._names = reply.content_type, names
            self._split(reply.content_type, names)
        if not own:
            return self._without_own
        return b"%b%b" % (self._without_own, lines_of(own))

    def _split(self, content_type: str, names: tuple[bytes, ...]) -> None:
        """Sort the whole answer's lines into those before its type and those after it."""
        wanted = content_type.encode("latin-1")
        kind = b"Content-Type: %b\r\n" % wanted
        sides: tuple[list[bytes], list[bytes]] = ([], [])
        self.unknown = []
        typed = False
        for line in self._whole:
            name, _, value = line.partition(b":")
            name = name.lower()
            if name == b"content-type":
                typed = True
                if value.partition(b";")[0].strip().lower() == wanted.partition(b";")[0].strip().lower():
                    kind = line
            elif name not in names and self._is_everybodys(name, value, line):
                sides[typed].append(line)
        self._without_own = b"".join([*sides[0], kind, *sides[1]])

    def _is_everybodys(self, name: bytes, value: bytes, line: bytes) -> bool:
        if name in _OF_THE_SERVER:
            return True
        if name in _OF_THE_WHOLE:
            return False
        if name in _TIMES:
            return _TIME.fullmatch(value.strip()) is not None
        if name.startswith(_FAMILIES):
            return True
        self.unknown.append(line)
        return line in self._constant
