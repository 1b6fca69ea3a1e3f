"""A read that is costly to parse, in several turns of the event loop: others are served between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["PORTION", "Portions", "is_costly"]

PORTION: Final = 2048
"""Bytes that are parsed at once. Of the shortest chunks, with trailers announced, they take a few milliseconds."""
_MANY_LINES: Final = 256
_LONG_LINE: Final = 128


def is_costly(data: bytes) -> bool:
    """Whether parsing `data` could take long. What costs is each chunk, field and request, and each has its line."""
    return len(data) > PORTION and data.count(b"\n") > max(_MANY_LINES, len(data) // _LONG_LINE)


class Portions:
    """Hands reads on, a portion a turn. Meanwhile the transport rests; what comes all the same waits behind."""

    __slots__ = ("_at", "_cheap", "_done", "_loop", "_parse", "_reads", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        data: bytes,
        *,
        parse: Callable[[bytes], None],
        done: Callable[[], None],
        cheap: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take `data`. In later turns `parse` is called with each portion, and `done` before the last one.

        `cheap` says how many bytes come next that cost nothing, however many lines they have.
        """
        self._loop = loop
        self._transport = transport
        self._reads = deque((data,))
        self._parse = parse
        self._done = done
        self._cheap = cheap
        self._at = 0
        transport.pause_reading()
        loop.call_soon(self._next)

    def add(self, data: bytes) -> None:
        """Let `data`, which came behind it, wait."""
        self._reads.append(data)
        # Whoever drained the body has had the transport resume.
        self._transport.pause_reading()

    def drop(self) -> None:
        """Hand nothing on any more: the connection is gone."""
        self._reads.clear()

    def _next(self) -> None:
        if not self._reads:
            return
        data, at = self._reads[0], self._at
        end = at + max(PORTION, self._cheap())
        if end < len(data):
            self._at = end
        else:
            self._reads.popleft()
            self._at = 0
        portion = data[at:end]
        if self._reads:
            self._loop.call_soon(self._next)
        else:
            self._done()
        self._parse(portion)
