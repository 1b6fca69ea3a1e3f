"""The heads of answers that were cut out of one upstream answer."""

from __future__ import annotations

from proxy.headers import lines_of
from proxy.wire.base import Reply

__all__ = ["PartHeads"]

_OF_THE_WHOLE = (
    b"accept-ranges:", b"content-digest:", b"content-encoding:", b"content-md5:", b"content-range:", b"digest:",
    b"etag:", b"last-modified:", b"repr-digest:", b"set-cookie:", b"x-request-id:",
)  # fmt: skip
"""Fields that speak about the upstream's whole answer, or to one caller only: none of a part's."""


class PartHeads:
    """Writes each part the fields that the whole answer had, in their order, as if it had come by itself."""

    __slots__ = ("_after", "_before", "_known", "_type", "_whole")

    def __init__(self, lines: bytes) -> None:
        self._whole = lines.splitlines(keepends=True)
        self._known: tuple[object, ...] | None = None
        self._before = self._after = self._type = b""

    def lines(self, reply: Reply) -> bytes:
        """Return the end-to-end lines of one part, each ended by CRLF."""
        names = tuple(name.lower() + b":" for name, _ in reply.headers)
        known = (reply.content_type, names)
        if known != self._known:
            self._known = known
            self._split(reply.content_type, names)
        return b"%b%b%b%b" % (self._before, self._type, self._after, lines_of(reply.headers))

    def _split(self, content_type: str, names: tuple[bytes, ...]) -> None:
        """Sort the whole answer's lines into those before its type and those after it."""
        wanted = content_type.encode("latin-1")
        self._type = b"Content-Type: %b\r\n" % wanted
        sides: tuple[list[bytes], list[bytes]] = ([], [])
        typed = False
        for line in self._whole:
            name, _, value = line.lower().partition(b":")
            if name == b"content-type":
                typed = True
                if value.partition(b";")[0].strip() == wanted.partition(b";")[0].strip().lower():
                    self._type = line
            elif not line.lower().startswith((*_OF_THE_WHOLE, *names)):
                sides[typed].append(line)
        self._before, self._after = b"".join(sides[0]), b"".join(sides[1])
