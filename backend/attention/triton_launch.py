"""Launching the Triton attention kernels on torch tensors.

With TRITON_INTERPRET=1 in the environment before this module is imported, everything runs on CPU tensors. The
interpreter computes on the bit patterns of bfloat16, so operands are widened to float32 there.
"""

from __future__ import annotations

import os

import torch

from backend.attention.triton_kernels import combine_kernel, decode_kernel, prefill_kernel, store_kernel

__all__ = ["INTERPRETED", "MIN_DOT_ROWS", "decode", "power_of_two", "prefill", "splits_for", "store"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MIN_DOT_ROWS = 16
"""The tensor cores' smallest tile: a group of query heads is padded to so many rows."""
MAX_SPLITS = 32
_LOG2_E = 1.4426950408889634


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()


def store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Write k and v [T, kv_heads, dim] to the slots [N], N <= T; tokens beyond N and slots below 0 are skipped."""
    _, kv_heads, dim = k.shape
    store_kernel[slots.numel(), kv_heads](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.stride(0),
        DIM=dim,
        BLOCK_DIM=power_of_two(dim),
        num_warps=1,
    )


def splits_for(rows: int, kv_heads: int, processors: int) -> int:
    """Into how many parts to cut each context, so that a decode of `rows` rows fills the GPU about twice.

    It depends on the batch size only, never on the contexts: so is the order of the sums.
    """
    wanted = -(-2 * processors // (rows * kv_heads))
    return max(1, min(MAX_SPLITS, power_of_two(wanted)))


def decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    tokens: torch.Tensor,
    *,
    scale: float,
    splits: int,
    window: int | None = None,
    tile: int = 64,
) -> None:
    """Attend one query per row.

    Args:
        q: [T, heads, dim].
        k_cache: [kv_heads, num_blocks, block, dim].
        v_cache: like k_cache.
        out: [T, heads, dim], contiguous; the rows' tokens are written.
        tables: [rows, width] block ids; entries past a row's length are not read.
        lengths: [rows] tokens of each sequence, the query's own included; 0 for a row that is padding.
        tokens: [rows] where each row's query lies in q.
        scale: factor on the scores.
        splits: parts that each context is cut into (see splits_for).
        window: tokens that a query sees, itself included; None for all.
        tile: tokens per iteration.
    """
    rows, heads, dim, kv_heads = lengths.numel(), q.shape[1], q.shape[2], k_cache.shape[0]
    group = heads // kv_heads
    parts = rows * heads * splits if splits > 1 else 1
    partial = torch.empty(parts * dim, dtype=torch.float32, device=q.device)
    peaks = torch.empty(parts, dtype=torch.float32, device=q.device)
    totals = torch.empty(parts, dtype=torch.float32, device=q.device)
    block_dim = power_of_two(dim)
    decode_kernel[rows, kv_heads, splits](
        q,
        k_cache,
        v_cache,
        out,
        partial,
        peaks,
        totals,
        tables,
        lengths,
        tokens,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        tables.stride(0),
        scale * _LOG2_E,
        GROUP=group,
        GROUP_ROWS=max(MIN_DOT_ROWS, power_of_two(group)),
        DIM=dim,
        BLOCK_DIM=block_dim,
        BLOCK=k_cache.shape[2],
        TILE=tile,
        SPLITS=splits,
        WINDOW=window or 0,
        UPCAST=INTERPRETED,
        num_warps=4,
        num_stages=3 if dim <= 128 else 2,
    )
    if splits > 1:
        combine_kernel[rows, heads](
            out,
            partial,
            peaks,
            totals,
            tokens,
            DIM=dim,
            BLOCK_DIM=block_dim,
            SPLITS=splits,
            BLOCK_SPLITS=power_of_two(splits),
            num_warps=1,
        )


def prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    tile_rows: torch.Tensor,
    tile_firsts: torch.Tensor,
    *,
    scale: float,
    rows: int,
    window: int | None = None,
    tile: int = 64,
) -> None:
    """Attend the last `counts` of `lengths` tokens of each row; K and V must already be stored.

    Args:
        q: [T, heads, dim].
        k_cache: [kv_heads, num_blocks, block, dim].
        v_cache: like k_cache.
        out: [T, heads, dim], contiguous; the rows' tokens are written.
        tables: [R, width] block ids.
        lengths: [R] tokens of each sequence, the queries included.
        starts: [R] where each row's queries begin in q.
        counts: [R] queries of each row.
        tile_rows: [tiles] the row that each tile of queries belongs to.
        tile_firsts: [tiles] its first query, counted from the row's first; a tile holds rows // group queries.
        scale: factor on the scores.
        rows: query rows per tile, a power of two, at least 16 and at least the group size.
        window: tokens that a query sees, itself included; None for all.
        tile: keys per iteration.
    """
    heads, dim, kv_heads = q.shape[1], q.shape[2], k_cache.shape[0]
    prefill_kernel[tile_rows.numel(), kv_heads](
        q,
        k_cache,
        v_cache,
        out,
        tables,
        lengths,
        starts,
        counts,
        tile_rows,
        tile_firsts,
        q.stride(0),
        q.stride(1),
        k_cache.stride(0),
        tables.stride(0),
        scale * _LOG2_E,
        GROUP=heads // kv_heads,
        ROWS=rows,
        DIM=dim,
        BLOCK_DIM=power_of_two(dim),
        BLOCK=k_cache.shape[2],
        TILE=tile,
        WINDOW=window or 0,
        UPCAST=INTERPRETED,
        num_warps=8 if rows >= 128 else 4,
        num_stages=3 if dim <= 128 else 2,
    )
