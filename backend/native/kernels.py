"""The native kernels as calls on tensors, spread over torch's number of threads where there is enough to do."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence

import torch

from backend.native.library import load_library
from backend.native.threads import NativeFunction, pool, spread

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
    "norm_rows": [_P, _P, _P, _P, _I, _F, _C, _C, _I, _I],
    "gate_rows": [_P, _P, _I, _C, _C, _I, _I],
    "rotate_rows": [_P, _I, _P, _P, _P, _P, _I, _I, _I, _F, _C, _C, _I, _I],
    "store_rows": [_P, _P, _I, _P, _I, _P, _I, _P, _I, _I, _C, _I, _I],
    "attend_rows": [_P, _P, _I, _P, _P, _I, _P, _I, _P, _P, _P, _I, _I, _I, _I, _F, _C, _P, _I, _I],
}


@functools.cache
def load_kernels() -> Kernels | None:
    """Return the kernels, compiled at the first call, or None where there is no way to have them."""
    library = load_library()
    return None if library is None else Kernels(library)


class DecodeRows:
    """Rows with one query each: what of the cache they see, laid out once for all layers of a step.

    Args:
        tables: the blocks of each row; one may be longer than its row needs.
        starts: the first position that each row sees.
        stops: one past the last.
        tokens: where the rows' queries lie among the step's tokens.
    """

    def __init__(self, tables: Sequence[list[int]], starts: list[int], stops: list[int], tokens: list[int]) -> None:
        width = max(map(len, tables))
        flat = [block for table in tables for block in (*table, *(0,) * (width - len(table)))]
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        ranges = _even_parts(lengths, torch.get_num_threads())
        scores = torch.empty(len(ranges), _SCORE_ROWS * (max(lengths) + _SCORE_PADDING))
        self._kept = [torch.tensor(flat, dtype=torch.int32), *map(torch.tensor, (starts, stops, tokens)), scores]
        table, *others = (tensor.data_ptr() for tensor in self._kept[:-1])
        self.pointers: tuple[int, ...] = (table, width, *others)
        """Of the tables int32 [rows, width], their width, and of starts, stops and tokens int64 [rows]."""
        self.parts: list[tuple[int, int, int]] = [
            (scores[part].data_ptr(), first, last) for part, (first, last) in enumerate(ranges)
        ]
        """For each thread a pointer to scratch, and a range of rows; all ranges have about as many positions."""


def _even_parts(lengths: Sequence[int], threads: int) -> list[tuple[int, int]]:
    """Cut rows into at most `threads` neighbouring ranges of about the same total length."""
    ends = list(itertools.accumulate(lengths))
    share = -(-ends[-1] // threads)
    cuts = [0]
    for row, end in enumerate(ends, 1):
        if end >= share * len(cuts) or row == len(ends):
            cuts.append(row)
    return list(itertools.pairwise(cuts))


class Kernels:
    """The compiled kernels: the Ops of a model on the CPU, one pass over the data each, and attention of decode rows.

    Tensors are float32 or bfloat16, on the CPU, their last axes dense.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._norm, self._gate, self._rotate, self._store, self._attend = (
            self._bind(library, name) for name in _SIGNATURES
        )

    @staticmethod
    def _bind(library: ctypes.CDLL, name: str) -> NativeFunction:
        function = getattr(library, name)
        function.argtypes, function.restype = _SIGNATURES[name], None
        call: NativeFunction = function
        return call

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
        out = torch.empty_like(x)
        low, weight_low = x.dtype is torch.bfloat16, weight.dtype is torch.bfloat16
        rows, width = x.shape
        arguments = (out.data_ptr(), x.data_ptr(), residual, weight.data_ptr(), width, eps, low, weight_low)
        spread(self._norm, arguments, rows, _SPREAD_FROM)
        return out

    def gate(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """See Ops; gate_up is dense."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, width, dtype=gate_up.dtype)
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
        self._store(*arguments, 0, rows)

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
            *rows.pointers,
            kv_heads,
            q.shape[1] // kv_heads,
            dim,
            block_size,
            scale,
            q.dtype is torch.bfloat16,
        )
        if len(rows.parts) == 1:
            self._attend(*arguments, *rows.parts[0])
            return
        for call in [pool().submit(self._attend, *arguments, *part) for part in rows.parts]:
            call.result()
