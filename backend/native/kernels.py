"""The native kernels as calls on tensors, spread over torch's number of threads where there is enough to do."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence

import numpy as np
import torch

from backend.native.library import load_library
from backend.native.team import Operation, fresh, spread

__all__ = ["DTYPES", "DecodeRows", "Kernels", "load_kernels"]

DTYPES = (torch.float32, torch.bfloat16)
"""Element types that the kernels compute."""

_HEAD_LANES, _LARGEST_HEAD = 32, 256
_SPREAD_FROM = 32
"""Rows from which on a second thread gains more than waking it costs."""
_SCORE_ROWS, _SCORE_PADDING = 4, 16
"""MAX_GROUP of cache.c and the most that LANES can be."""

_P, _I, _F, _C = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, list[type]] = {
    "norm_rows": [_P, _P, _P, _P, _I, _F, _C, _C],
    "gate_rows": [_P, _P, _I, _C, _C],
    "rotate_rows": [_P, _I, _P, _P, _P, _P, _I, _I, _I, _F, _C, _C],
    "store_rows": [_P, _P, _I, _P, _I, _P, _I, _P, _I, _I, _C],
    "attend_parts": [_P, _P, _I, _P, _P, _I, _P, _I, _P, _P, _P, _I, _I, _I, _I, _F, _C, _P, _I, _P],
}


@functools.cache
def load_kernels() -> Kernels | None:
    """Return the kernels, compiled at the first call, or None where there is no way to have them."""
    library = load_library()
    return None if library is None else Kernels(library)


class DecodeRows:
    """Rows with one query each: what of the cache they see, for all layers of a step.

    Args:
        rows: how many there are at most.
        width: most blocks of one.
        longest: most positions that one sees.
    """

    def __init__(self, rows: int, width: int, longest: int) -> None:
        self.parts = max(1, min(rows, torch.get_num_threads()))
        """Into how many ranges the rows are cut, one for each thread."""
        self._tables = torch.zeros(rows, width, dtype=torch.int32)
        self._numbers = torch.zeros(3, rows, dtype=torch.int64)
        self._cuts = torch.zeros(self.parts + 1, dtype=torch.int64)
        self._scores = torch.empty(self.parts, _SCORE_ROWS * (longest + _SCORE_PADDING))
        starts, stops, tokens = (numbers.data_ptr() for numbers in self._numbers)
        self.seen: tuple[int, ...] = (self._tables.data_ptr(), width, starts, stops, tokens)
        """Where the tables int32 [rows, width] are, and starts, stops and tokens int64 [rows]."""
        self.scratch: tuple[int, ...] = (self._scores.data_ptr(), self._scores.stride(0), self._cuts.data_ptr())
        """Where the parts' scores are, and the cuts int64 [parts + 1]."""

    @classmethod
    def of(cls, tables: Sequence[list[int]], starts: list[int], stops: list[int], tokens: list[int]) -> DecodeRows:
        """Make room for these rows and lay them out, see `fill`."""
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        rows = cls(len(tables), max(map(len, tables)), max(lengths))
        rows.fill(tables, starts, stops, tokens)
        return rows

    def fill(self, tables: Sequence[list[int]], starts: list[int], stops: list[int], tokens: list[int]) -> None:
        """Lay out rows.

        Args:
            tables: the blocks of each row; one may be longer than its row needs.
            starts: the first position that each row sees.
            stops: one past the last.
            tokens: where the rows' queries lie among the step's tokens.
        """
        count = len(tables)
        self._numbers.numpy()[:, :count] = (starts, stops, tokens)
        widths = np.fromiter(map(len, tables), dtype=np.int64, count=count)
        width = int(widths.max())
        flat = np.fromiter(itertools.chain.from_iterable(tables), dtype=np.int32, count=int(widths.sum()))
        # What is past a row's own blocks is never read.
        self._tables.numpy()[:count, :width][np.arange(width) < widths[:, None]] = flat
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        self._cuts.numpy()[:] = _even_cuts(lengths, self.parts)


def _even_cuts(lengths: Sequence[int], parts: int) -> list[int]:
    """Where to cut rows into `parts` neighbouring ranges of about the same total length: parts + 1 numbers of rows.

    The last ranges may be empty.
    """
    ends = list(itertools.accumulate(lengths))
    share = -(-ends[-1] // parts)
    cuts = [0]
    for row, end in enumerate(ends, 1):
        if end >= share * len(cuts) or row == len(ends):
            cuts.append(row)
    return cuts + [len(ends)] * (parts + 1 - len(cuts))


class Kernels:
    """The compiled kernels: the Ops of a model on the CPU, one pass over the data each, and attention of decode rows.

    Tensors are float32 or bfloat16, on the CPU, their last axes dense.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._norm, self._gate, self._rotate, self._store, self._attend = (
            Operation(library, name, types) for name, types in _SIGNATURES.items()
        )

    @staticmethod
    def attends(head_dim: int) -> bool:
        """Whether `attend` takes heads of this size."""
        return head_dim % _HEAD_LANES == 0 and head_dim <= _LARGEST_HEAD

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops; x is dense."""
        return self._normalise(x, None, weight, eps)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops; x and residual are dense, and x becomes their sum."""
        return self._normalise(x, residual.data_ptr(), weight, eps), x

    def _normalise(self, x: torch.Tensor, residual: int | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        out = fresh(*x.shape, dtype=x.dtype)
        low, weight_low = x.dtype is torch.bfloat16, weight.dtype is torch.bfloat16
        rows, width = x.shape
        arguments = (out.data_ptr(), x.data_ptr(), residual, weight.data_ptr(), width, eps, low, weight_low)
        spread(self._norm, arguments, rows, _SPREAD_FROM)
        return out

    def gate(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """See Ops; gate_up is dense."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = fresh(rows, width, dtype=gate_up.dtype)
        low = out.dtype is torch.bfloat16
        arguments = (out.data_ptr(), gate_up.data_ptr(), width, activation == "gelu_tanh", low)
        spread(self._gate, arguments, rows, _SPREAD_FROM)
        return out

    def rotate(
        self,
        qk: torch.Tensor,
        heads: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops; in place."""
        rows, both, dim = qk.shape
        arguments = (
            qk.data_ptr(),
            qk.stride(0),
            cos.data_ptr(),
            sin.data_ptr(),
            None if q_norm is None else q_norm.data_ptr(),
            None if k_norm is None else k_norm.data_ptr(),
            heads,
            both - heads,
            dim,
            eps,
            qk.dtype is torch.bfloat16,
            q_norm is not None and q_norm.dtype is torch.bfloat16,
        )
        spread(self._rotate, arguments, rows, _SPREAD_FROM)
        return qk[:, :heads], qk[:, heads:]

    def store(
        self, keys: torch.Tensor, values: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Put k and v, [T, kv_heads, dim], into slots (int64 [T]) of a layer's cache; negative ones store nothing.

        `keys` and `values` are [kv_heads, num_blocks, block_size, dim], and laid out alike.
        """
        rows, kv_heads, dim = k.shape
        arguments = (
            keys.data_ptr(),
            values.data_ptr(),
            keys.stride(0),
            k.data_ptr(),
            k.stride(0),
            v.data_ptr(),
            v.stride(0),
            slots.data_ptr(),
            kv_heads,
            dim,
            k.dtype is torch.bfloat16,
        )
        spread(self._store, arguments, rows, _SPREAD_FROM)

    def attend(
        self,
        out: torch.Tensor,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        rows: DecodeRows,
        scale: float,
    ) -> None:
        """Attend rows of one query each; writes their rows of dense out [T, heads, dim].

        Args:
            out: where the result goes.
            q: [T, heads, dim].
            keys: a layer's [kv_heads, num_blocks, block_size, dim].
            values: the same.
            rows: which queries, and what they see.
            scale: of the scores.
        """
        kv_heads, _, block_size, dim = keys.shape
        arguments = (
            out.data_ptr(),
            q.data_ptr(),
            q.stride(0),
            keys.data_ptr(),
            values.data_ptr(),
            keys.stride(0),
            *rows.seen,
            kv_heads,
            q.shape[1] // kv_heads,
            dim,
            block_size,
            scale,
            q.dtype is torch.bfloat16,
            *rows.scratch,
        )
        spread(self._attend, arguments, rows.parts)
