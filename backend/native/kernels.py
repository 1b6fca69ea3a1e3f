"""The native kernels as calls on tensors, spread over torch's number of threads where there is enough to do."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from backend.native.library import load_library

__all__ = ["DTYPES", "DecodeRows", "Kernels", "load_kernels"]

DTYPES = (torch.float32, torch.bfloat16)
"""Element types that the kernels compute."""

_HEAD_LANES, _LARGEST_HEAD = 32, 256
_SPREAD_FROM = 32
"""Rows from which on a second thread gains more than waking it costs."""
_SCORE_ROWS, _SCORE_PADDING = 4, 16
"""MAX_GROUP and LANES of kernels.c."""

_P, _I, _F, _C = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES: dict[str, list[type]] = {
    "norm_rows": [_P, _P, _P, _P, _I, _I, _F, _C, _C],
    "gate_rows": [_P, _P, _I, _I, _C, _C],
    "rotate_rows": [_P, _I, _P, _P, _P, _P, _I, _I, _I, _I, _F, _C, _C],
    "store_rows": [_P, _I, _P, _I, _P, _I, _I, _I, _C],
    "attend_rows": [_P, _P, _I, _P, _P, _I, _P, _I, _P, _P, _P, _I, _I, _I, _I, _I, _F, _P, _C],
}


@functools.cache
def load_kernels() -> Kernels | None:
    """Return the kernels, compiled at the first call, or None where there is no way to have them."""
    library = load_library()
    return None if library is None else Kernels(library)


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Rows with one query each: what of the cache they see."""

    tables: torch.Tensor
    """int32 [rows, width]"""
    starts: torch.Tensor
    """int64 [rows] the first position that is seen"""
    stops: torch.Tensor
    """int64 [rows] one past the last"""
    tokens: torch.Tensor
    """int64 [rows] where their queries lie among the step's tokens"""
    parts: list[tuple[int, int]]
    """Ranges of rows with about the same number of positions, one for each thread."""
    scores: torch.Tensor
    """float32 [parts, ...] scratch"""

    @classmethod
    def of(cls, tables: Sequence[list[int]], starts: list[int], stops: list[int], tokens: list[int]) -> DecodeRows:
        """Lay out rows; a table may be longer than its row needs."""
        width = max(map(len, tables))
        flat = [block for table in tables for block in (*table, *(0,) * (width - len(table)))]
        lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
        parts = _even_parts(lengths, torch.get_num_threads())
        return cls(
            tables=torch.tensor(flat, dtype=torch.int32),
            starts=torch.tensor(starts),
            stops=torch.tensor(stops),
            tokens=torch.tensor(tokens),
            parts=parts,
            scores=torch.empty(len(parts), _SCORE_ROWS * (max(lengths) + _SCORE_PADDING)),
        )


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
    """The compiled kernels. Tensors are float32 or bfloat16, on the CPU, their last axes dense."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._norm, self._gate, self._rotate, self._store, self._attend = (
            self._bind(library, name) for name in _SIGNATURES
        )
        self._pool: ThreadPoolExecutor | None = None

    @staticmethod
    def _bind(library: ctypes.CDLL, name: str) -> Callable[..., None]:
        function = getattr(library, name)
        function.argtypes, function.restype = _SIGNATURES[name], None
        call: Callable[..., None] = function
        return call

    @staticmethod
    def attends(head_dim: int) -> bool:
        """Whether `attend` takes heads of this size."""
        return head_dim % _HEAD_LANES == 0 and head_dim <= _LARGEST_HEAD

    def norm(self, x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """RMS norm of dense [T, width], after adding `residual` to x in place."""
        rows, width = x.shape
        out = torch.empty_like(x)
        step = width * x.element_size()
        more = residual.data_ptr() if residual is not None else None
        low, weight_low = x.dtype is torch.bfloat16, weight.dtype is torch.bfloat16

        def run(first: int, last: int) -> None:
            at = first * step
            self._norm(
                out.data_ptr() + at,
                x.data_ptr() + at,
                more and more + at,
                weight.data_ptr(),
                last - first,
                width,
                eps,
                low,
                weight_low,
            )

        self._spread(rows, run)
        return out

    def gate(self, gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
        """silu(gate) * up, or with the tanh form of GELU, of dense [T, 2 * inner]."""
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty(rows, width)
        step = width * out.element_size()
        low = out.dtype is torch.bfloat16

        def run(first: int, last: int) -> None:
            at = first * step
            self._gate(out.data_ptr() + at, gate_up.data_ptr() + 2 * at, last - first, width, gelu, low)

        self._spread(rows, run)
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
    ) -> None:
        """Normalise (where norms are given) and rotate the heads of [T, heads + kv_heads, dim], in place."""
        rows, both, dim = qk.shape
        stride, size = qk.stride(0), qk.element_size()
        low = qk.dtype is torch.bfloat16
        norm_low = q_norm is not None and q_norm.dtype is torch.bfloat16
        norms = [None if norm is None else norm.data_ptr() for norm in (q_norm, k_norm)]

        def run(first: int, last: int) -> None:
            angle = first * (dim // 2) * size
            self._rotate(
                qk.data_ptr() + first * stride * size,
                stride,
                cos.data_ptr() + angle,
                sin.data_ptr() + angle,
                *norms,
                last - first,
                heads,
                both - heads,
                dim,
                eps,
                low,
                norm_low,
            )

        self._spread(rows, run)

    def store(self, cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor) -> None:
        """Put [T, kv_heads, dim] into the slots (int64 [T]) of a layer's cache; negative ones store nothing."""
        rows, kv_heads, dim = new.shape
        low = new.dtype is torch.bfloat16
        self._store(
            cache.data_ptr(),
            cache.stride(0),
            new.data_ptr(),
            new.stride(0),
            slots.data_ptr(),
            rows,
            kv_heads,
            dim,
            low,
        )

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
        width = rows.tables.numel() // rows.starts.numel()
        low = q.dtype is torch.bfloat16

        def run(part: int) -> None:
            first, last = rows.parts[part]
            self._attend(
                out.data_ptr(),
                q.data_ptr(),
                q.stride(0),
                keys.data_ptr(),
                values.data_ptr(),
                keys.stride(0),
                rows.tables.data_ptr() + first * width * 4,
                width,
                rows.starts.data_ptr() + first * 8,
                rows.stops.data_ptr() + first * 8,
                rows.tokens.data_ptr() + first * 8,
                last - first,
                kv_heads,
                q.shape[1] // kv_heads,
                dim,
                block_size,
                scale,
                rows.scores.data_ptr() + part * rows.scores.stride(0) * 4,
                low,
            )

        if len(rows.parts) == 1:
            run(0)
        else:
            list(self._threads().map(run, range(len(rows.parts))))

    def _spread(self, rows: int, run: Callable[[int, int], None]) -> None:
        """Call `run(first, last)` over all rows, in several threads where torch would use several."""
        parts = min(torch.get_num_threads(), rows // _SPREAD_FROM)
        if parts < 2:
            run(0, rows)
            return
        cuts = [rows * part // parts for part in range(parts + 1)]
        list(self._threads().map(run, cuts[:-1], cuts[1:]))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), "native")
        return self._pool
