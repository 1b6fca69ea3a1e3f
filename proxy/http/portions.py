"""A read that is costly to parse, in several turns of the event loop: others are served between them."""

from __future__ import annotations

import asyncio
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
    """Hands one read on, a portion a turn. Meanwhile the transport rests; what comes all the same waits behind."""

    __slots__ = ("_at", "_data", "_done", "_loop", "_parse", "_transport")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        data: bytes,
        *,
        parse: Callable[[bytes], None],
        done: Callable[[], None],
    ) -> None:
        """Take `data`. `parse` is called with each portion, `done` behind the last one, in later turns."""
        self._loop = loop
        self._transport = transport
        self._data = data
        self._parse = parse
        self._done = done
        self._at = 0
        transport.pause_reading()
        loop.call_soon(self._next)

    def add(self, data: bytes) -> None:
        """Let `data`, which came behind it, wait."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def drop(self) -> None:
        """Hand nothing on any more: the connection is gone."""
        self._data, self._at = b"", 0

    def _next(self) -> None:
        if not self._data:
            return
        at = self._at
        self._at = end = at + PORTION
        portion = self._data[at:end]
        if end < len(self._data):
            self._loop.call_soon(self._next)
            self._parse(portion)
        else:
            self._data, self._at = b"", 0
            self._done()
            self._parse(portion)
