"""Request bodies in memory, counted over all requests: what waits or is on its way holds its bytes."""

from __future__ import annotations

from typing import Final

from proxy.outcome import MemoryFull, Refused

__all__ = ["UPLOAD_BYTES", "Held"]

UPLOAD_BYTES: Final = 131_072
"""What a body that is passed on as it comes holds at most: the server stops reading beyond it."""


class Held:
    """One process's count. `limit` is in bytes."""

    __slots__ = ("limit", "now", "peak")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.now = 0
        """Bytes that are held."""
        self.peak = 0
        """The most that were held at once."""

    def take(self, size: int) -> None:
        """Hold `size` bytes more. Raises Refused when that is too much; nothing is held then."""
        now = self.now + size
        if now > self.limit:
            raise Refused(MemoryFull())
        self.now = now
        if now > self.peak:
            self.peak = now

    def give(self, size: int) -> None:
        """Hold `size` bytes less."""
        self.now -= size
