"""Reading newline-delimited JSON as it passes by: any chunk split, bounded memory."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from proxy.wire.base import Tap
from proxy.wire.sse import KEPT_TAIL, MAX_EVENT

__all__ = ["LineTap"]


@mypyc_attr(allow_interpreted_subclasses=True)
class LineTap(Tap):
    """Cuts a stream into lines and hands each complete, non-empty one to `line`.

    As with events, what `line` sees never depends on the split: a line longer than MAX_EVENT bytes is always
    reduced to its last KEPT_TAIL. A last line without a newline is left to `unfinished`.
    """

    __slots__ = ("_partial", "_size", "tokens_seen")

    def __init__(self) -> None:
        self.tokens_seen = 0
        self._partial = bytearray()
        self._size = 0

    def line(self, data: bytes) -> None:
        """Look at one line, without its end."""

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the body."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._append(data[start:end])
            self._finish()
            start = end + 1
        if start < len(data):
            self._append(data[start:] if start else data)

    def at_boundary(self) -> bool:
        """Whether what has passed so far ends between two lines."""
        return not self._size

    def unfinished(self) -> bytes:
        """Return the line that has not ended yet, as much of it as is kept."""
        return bytes(self._partial)

    def _append(self, data: bytes) -> None:
        self._partial += data
        self._size += len(data)
        if len(self._partial) > MAX_EVENT + KEPT_TAIL:
            del self._partial[:-KEPT_TAIL]

    def _finish(self) -> None:
        line = bytes(self._partial if self._size <= MAX_EVENT else self._partial[-KEPT_TAIL:]).strip()
        self._partial.clear()
        self._size = 0
        if line:
            self.line(line)
