"""Matrix products over weights that were laid out once: see strips.c (float32) and tiles.c (bfloat16)."""

from __future__ import annotations

import ctypes
import functools

import torch

from backend.native.library import load_library
from backend.native.team import Operation, fresh, spread

__all__ = ["Products", "load_products"]

_TILE_COLUMNS, _TILE_DEPTH = 32, 32
"""COLUMNS and DEPTH of tiles.c."""

_P, _I = ctypes.c_void_p, ctypes.c_int64


@functools.cache
def load_products() -> Products | None:
    """Return the products, or None where there is no compiler."""
    library = load_library()
    return None if library is None else Products(library)


class Products:
    """y = x W^T + b on the CPU, every row as if it were alone."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._lay_out = Operation(library, "lay_out_rows", [_P, _P, _I, _I])
        self._strips = Operation(library, "multiply_strips", [_P, _P, _P, _P, _I, _I, _I])
        self._tiles = Operation(library, "multiply_tiles", [_P, _P, _P, _P, _I, _I, _I, ctypes.c_int])
        library.strip_columns.restype = _I
        self.strip = int(library.strip_columns())
        """Columns of a strip of a float32 weight."""
        self.has_tiles = bool(library.tiles_ready())
        """Whether this processor multiplies bfloat16 in tile registers, and the system lends them."""

    def takes(self, weight: torch.Tensor) -> bool:
        """Whether `pack` can lay out this weight, [out, in]."""
        width, depth = weight.shape
        if weight.dtype is torch.float32:
            return width % self.strip == 0
        tiled = width % _TILE_COLUMNS == 0 and depth % _TILE_DEPTH == 0
        return weight.dtype is torch.bfloat16 and self.has_tiles and tiled

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Lay out [out, in] in the order in which it is used.

        Returns:
            [out / strip, in, column] of float32, [out / 32, in / 32, half, pair, column, element] of bfloat16
        """
        width, depth = weight.shape
        if weight.dtype is torch.float32:
            return weight.view(-1, self.strip, depth).transpose(1, 2).contiguous()
        blocks = weight.view(width // _TILE_COLUMNS, 2, _TILE_COLUMNS // 2, depth // _TILE_DEPTH, _TILE_DEPTH // 2, 2)
        return blocks.permute(0, 3, 1, 4, 2, 5).contiguous()

    def multiply(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, *, wide: bool = False
    ) -> torch.Tensor:
        """Multiply [T, in] by a packed weight; returns [T, out], float32 where `wide`, else of x's type."""
        x = x.contiguous()
        rows, depth = x.shape
        blocks, offset = packed.shape[0], None if bias is None else bias.data_ptr()
        if packed.dtype is torch.bfloat16:
            width = blocks * _TILE_COLUMNS
            out = fresh(rows, width, dtype=torch.float32 if wide else torch.bfloat16)
            pointers = (out.data_ptr(), x.data_ptr(), packed.data_ptr(), offset)
            spread(self._tiles, (*pointers, rows, depth, width, wide), blocks)
            return out
        width = blocks * self.strip
        out, panel = fresh(rows, width, dtype=torch.float32), x
        if rows > 1:
            panel = fresh(rows * depth + self.strip, dtype=torch.float32)
            spread(self._lay_out, (panel.data_ptr(), x.data_ptr(), rows, depth), 1)
        pointers = (out.data_ptr(), panel.data_ptr(), packed.data_ptr(), offset)
        spread(self._strips, (*pointers, rows, depth, width), blocks)
        return out
