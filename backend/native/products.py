"""Matrix products over weights that were laid out once: see strips.c (float32) and tiles.c (bfloat16)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from backend.native.library import load_library

__all__ = ["Products", "load_products"]

_STRIP = 64
"""COLUMNS of strips.c."""
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
        self._strips, self._tiles = library.multiply_strips, library.multiply_tiles
        self._strips.argtypes = [_P, _P, _P, _P, _I, _I, _I, _I, _I]
        self._tiles.argtypes = [*self._strips.argtypes, ctypes.c_int]
        self._strips.restype = self._tiles.restype = None
        self.has_tiles = bool(library.tiles_ready())
        """Whether this processor multiplies bfloat16 in tile registers, and the system lends them."""
        self._pool: ThreadPoolExecutor | None = None

    def takes(self, weight: torch.Tensor) -> bool:
        """Whether `pack` can lay out this weight, [out, in]."""
        width, depth = weight.shape
        if weight.dtype is torch.float32:
            return width % _STRIP == 0
        tiled = width % _TILE_COLUMNS == 0 and depth % _TILE_DEPTH == 0
        return weight.dtype is torch.bfloat16 and self.has_tiles and tiled

    @staticmethod
    def pack(weight: torch.Tensor) -> torch.Tensor:
        """Lay out [out, in] in the order in which it is used.

        Returns:
            [out / 64, in, column] of float32, [out / 32, in / 32, half, pair, column, element] of bfloat16
        """
        width, depth = weight.shape
        if weight.dtype is torch.float32:
            return weight.view(-1, _STRIP, depth).transpose(1, 2).contiguous()
        blocks = weight.view(width // _TILE_COLUMNS, 2, _TILE_COLUMNS // 2, depth // _TILE_DEPTH, _TILE_DEPTH // 2, 2)
        return blocks.permute(0, 3, 1, 4, 2, 5).contiguous()

    def multiply(
        self, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, *, wide: bool = False
    ) -> torch.Tensor:
        """Multiply [T, in] by a packed weight; returns [T, out], float32 where `wide`, else of x's type."""
        x = x.contiguous()
        rows, depth = x.shape
        low = packed.dtype is torch.bfloat16
        width = packed.shape[0] * (_TILE_COLUMNS if low else _STRIP)
        out = torch.empty(rows, width, dtype=torch.float32 if wide else x.dtype)
        offset = None if bias is None else bias.data_ptr()

        def run(first: int, last: int) -> None:
            arguments = (out.data_ptr(), x.data_ptr(), packed.data_ptr(), offset, rows, depth, width, first, last)
            if low:
                self._tiles(*arguments, wide)
            else:
                self._strips(*arguments)

        self._spread(packed.shape[0], run)
        return out

    def _spread(self, blocks: int, run: Callable[[int, int], None]) -> None:
        """Call `run(first, last)` over all blocks of columns, in as many threads as torch uses."""
        threads = min(torch.get_num_threads(), blocks)
        if threads == 1:
            run(0, blocks)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), "products")
        cuts = [blocks * part // threads for part in range(threads + 1)]
        list(self._pool.map(run, cuts[:-1], cuts[1:]))
