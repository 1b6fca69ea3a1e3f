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

    __slots__ = ("_content_type", "_names", "_whole", "_without_own")

    def __init__(self, lines: bytes) -> None:
        self._whole = lines.splitlines(keepends=True)
        self._content_type: str | None = None
        self._names: tuple[bytes, ...] = ()
        self._without_own = b""

    def lines(self, reply: Reply) -> bytes:
        """Return the end-to-end lines of one part, each ended by CRLF."""
        own = reply.headers
        names = tuple([name.lower() + b":" for name, _ in own]) if own else ()
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
        typed = False
        for line in self._whole:
            name, _, value = line.lower().partition(b":")
            if name == b"content-type":
                typed = True
                if value.partition(b";")[0].strip() == wanted.partition(b";")[0].strip().lower():
                    kind = line
            elif not line.lower().startswith((*_OF_THE_WHOLE, *names)):
                sides[typed].append(line)
        self._without_own = b"".join([*sides[0], kind, *sides[1]])
