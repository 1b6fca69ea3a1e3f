"""A body that comes in pieces, put together block by block."""

from __future__ import annotations

from typing import Final

__all__ = ["Gathered"]

_BLOCK: Final = 1_048_576
"""Blocks of this size are mapped by themselves and go back to the system when they are freed. Small pieces of several
bodies that come at once lie between each other, and the holes they leave are of no use to anybody."""


class Gathered:
    """The pieces so far: whole blocks, and what is not one yet."""

    __slots__ = ("_blocks", "_loose", "_pieces", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._loose = 0
        """Bytes of the pieces that are in no block yet."""
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        self._pieces.append(piece)
        self.size += len(piece)
        self._loose += len(piece)
        if self._loose >= _BLOCK:
            self._blocks.append(b"".join(self._pieces))
            self._pieces.clear()
            self._loose = 0

    def joined(self) -> bytes:
        """Return all of it in one."""
        return b"".join([*self._blocks, *self._pieces])
