"""The GGUF container, version 2 and 3: metadata and where each tensor's bytes lie.

A reader of its own because a vocabulary of 50,000 strings should take milliseconds: the strings are decoded
straight from the mapped file. Format: the GGUF specification of the ggml project. Little-endian files only.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.models.errors import ModelError

__all__ = ["GGUFFile", "TensorInfo"]

_MAGIC = b"GGUF"
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Rows first, as in torch (the file lists the fastest axis first)."""
    kind: int
    """ggml's number for the element type."""
    offset: int
    """Where its bytes start, from the beginning of the file."""


class GGUFFile:
    """A mapped GGUF file.

    Raises:
        ModelError: the file is not GGUF, of another version, or cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from None
        self._at = 0
        try:
            self._parse()
        except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
            raise ModelError(f"{path}: damaged GGUF file at byte {self._at}: {error}") from None

    def _parse(self) -> None:
        if self._take(4) != _MAGIC:
            raise ModelError(f"{self.path}: not a GGUF file")
        version = self._scalar(4)
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version {version} is not supported (supported: 2, 3)")
        tensor_count, pair_count = self._scalar(10), self._scalar(10)
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            self.metadata[key] = self._value(self._scalar(4))
        rough = [self._tensor_info() for _ in range(tensor_count)]
        alignment = int(self.metadata.get("general.alignment", 32))
        start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {
            name: TensorInfo(name, shape, kind, start + offset) for name, shape, kind, offset in rough
        }

    def _take(self, count: int) -> bytes:
        piece = self.data[self._at : self._at + count]
        if len(piece) < count:
            raise IndexError("unexpected end of file")
        self._at += count
        return piece

    def _scalar(self, kind: int) -> Any:
        (value,) = _SCALARS[kind].unpack_from(self.data, self._at)
        self._at += _SCALARS[kind].size
        return bool(value) if kind == _BOOL else value

    def _string(self) -> str:
        return self._take(self._scalar(10)).decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(kind)
        inner, count = self._scalar(4), self._scalar(10)
        if inner in (_STRING, _ARRAY):
            return [self._value(inner) for _ in range(count)]
        scalar = _SCALARS[inner]
        values = struct.unpack(f"<{count}{scalar.format[-1]}", self._take(count * scalar.size))
        return [bool(value) for value in values] if inner == _BOOL else list(values)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        axes = [self._scalar(10) for _ in range(self._scalar(4))]
        kind, offset = self._scalar(4), self._scalar(10)
        return name, tuple(reversed(axes)), kind, offset
