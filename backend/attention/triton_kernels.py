"""Triton kernels over the paged KV cache: store, decode with split KV, and prefill.

Layouts: queries [tokens, heads, dim] and keys, values [tokens, kv_heads, dim] with any token and head stride; caches
[kv_heads, num_blocks, block, dim], contiguous within a head. Online softmax as in FlashAttention (Dao et al. 2022);
split KV with a second pass as in Flash-Decoding (Dao et al. 2023). Loop bounds come from lengths in device memory
and grids from shapes only, so that a captured graph serves every context length.
"""

# Constants of a kernel are written in capitals, as everywhere in Triton, and the language has no types to annotate.
# ruff: noqa: N803, N806
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["combine_kernel", "decode_kernel", "prefill_kernel", "store_kernel"]


@triton.jit
def store_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slots_ptr,
    k_stride,
    k_head_stride,
    v_stride,
    v_head_stride,
    cache_head_stride,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    """Grid (tokens, kv_heads): one vector of K and of V into its slot; slot -1 is skipped."""
    token = tl.program_id(0)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    lanes = tl.arange(0, BLOCK_DIM)
    inside = lanes < DIM
    k = tl.load(k_ptr + token * k_stride + head * k_head_stride + lanes, mask=inside)
    v = tl.load(v_ptr + token * v_stride + head * v_head_stride + lanes, mask=inside)
    target = head * cache_head_stride + slot * DIM + lanes
    tl.store(k_cache_ptr + target, k, mask=inside)
    tl.store(v_cache_ptr + target, v, mask=inside)


@triton.jit
def _attend_tile(
    q,
    k_ptrs,
    v_ptrs,
    load_mask,
    visible,
    peak,
    total,
    acc,
    scale,
    UPCAST: tl.constexpr,
):
    """One tile of keys and values into the running softmax (peak, total, acc); scores are in powers of two."""
    k = tl.load(k_ptrs, mask=load_mask, other=0.0)
    v = tl.load(v_ptrs, mask=load_mask, other=0.0)
    if UPCAST:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that sees nothing yet has a peak of -inf; 0 in its place keeps -inf - -inf out of the exponent.
    anchor = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - anchor[:, None])
    fade = tl.exp2(peak - anchor)
    total = total * fade + tl.sum(weights, 1)
    acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_peak, total, acc


@triton.jit
def decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    out_ptr,
    partial_ptr,
    peaks_ptr,
    totals_ptr,
    tables_ptr,
    lengths_ptr,
    tokens_ptr,
    q_stride,
    q_head_stride,
    cache_head_stride,
    table_stride,
    scale,
    GROUP: tl.constexpr,
    GROUP_ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    SPLITS: tl.constexpr,
    WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Grid (rows, kv_heads, SPLITS): one part of one context for all query heads of a group."""
    tl.static_assert(GROUP_ROWS >= 16)
    row = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    heads = tl.num_programs(1) * GROUP
    length = tl.load(lengths_ptr + row)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    share = tl.cdiv(tl.cdiv(length - first, SPLITS), TILE) * TILE
    begin = first + split * share
    end = tl.minimum(begin + share, length)

    member = tl.arange(0, GROUP_ROWS)
    lanes = tl.arange(0, BLOCK_DIM)
    inside = lanes < DIM
    head = kv_head * GROUP + member
    in_group = member < GROUP
    q_ptrs = q_ptr + token * q_stride + head[:, None] * q_head_stride + lanes[None, :]
    q = tl.load(q_ptrs, mask=in_group[:, None] & inside[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    peak = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_ROWS], tl.float32)
    acc = tl.zeros([GROUP_ROWS, BLOCK_DIM], tl.float32)
    for start in range(begin, end, TILE):
        position = start + tl.arange(0, TILE)
        seen = position < end
        block = tl.load(tables_ptr + row * table_stride + position // BLOCK, mask=seen, other=0).to(tl.int64)
        at = kv_head * cache_head_stride + (block * BLOCK + position % BLOCK) * DIM
        offsets = at[:, None] + lanes[None, :]
        mask = seen[:, None] & inside[None, :]
        peak, total, acc = _attend_tile(
            q, k_cache_ptr + offsets, v_cache_ptr + offsets, mask, seen[None, :], peak, total, acc, scale, UPCAST
        )
    if SPLITS == 1:
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out_ptrs = out_ptr + (token * heads + head[:, None]) * DIM + lanes[None, :]
        tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=in_group[:, None] & inside[None, :])
    else:
        slot = (row * heads + head) * SPLITS + split
        tl.store(peaks_ptr + slot, peak, mask=in_group)
        tl.store(totals_ptr + slot, total, mask=in_group)
        partial_ptrs = partial_ptr + slot[:, None] * DIM + lanes[None, :]
        tl.store(partial_ptrs, acc, mask=in_group[:, None] & inside[None, :])


@triton.jit
def combine_kernel(
    out_ptr,
    partial_ptr,
    peaks_ptr,
    totals_ptr,
    tokens_ptr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Grid (rows, heads): weighs the parts of a context by their softmax totals."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    token = tl.load(tokens_ptr + row).to(tl.int64)
    lanes = tl.arange(0, BLOCK_DIM)
    split = tl.arange(0, BLOCK_SPLITS)
    slot = (row * heads + head) * SPLITS + split
    peaks = tl.load(peaks_ptr + slot, mask=split < SPLITS, other=float("-inf"))
    totals = tl.load(totals_ptr + slot, mask=split < SPLITS, other=0.0)
    peak = tl.max(peaks, 0)
    weights = tl.exp2(peaks - tl.where(peak == float("-inf"), 0.0, peak))
    mask = (split < SPLITS)[:, None] & (lanes < DIM)[None, :]
    parts = tl.load(partial_ptr + slot[:, None] * DIM + lanes[None, :], mask=mask, other=0.0)
    total = tl.sum(totals * weights, 0)
    result = tl.sum(parts * weights[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out_ptr + (token * heads + head) * DIM + lanes, result.to(out_ptr.dtype.element_ty), mask=lanes < DIM)


@triton.jit
def prefill_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    out_ptr,
    tables_ptr,
    lengths_ptr,
    starts_ptr,
    counts_ptr,
    tile_rows_ptr,
    tile_firsts_ptr,
    q_stride,
    q_head_stride,
    cache_head_stride,
    table_stride,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Grid (tiles, kv_heads): ROWS query rows, which are ROWS // GROUP tokens, over all they see."""
    tl.static_assert(ROWS >= 16)
    QUERIES: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1) * GROUP
    row = tl.load(tile_rows_ptr + tile)
    first_query = tl.load(tile_firsts_ptr + tile)
    length = tl.load(lengths_ptr + row)
    count = tl.load(counts_ptr + row)
    start_token = tl.load(starts_ptr + row).to(tl.int64)
    before = length - count  # tokens of the sequence in front of the queries

    # The heads of a group are rows of the same tile, so that K and V are read once for all of them.
    member = tl.arange(0, ROWS)
    query = first_query + member // GROUP
    head = kv_head * GROUP + member % GROUP
    valid = (member < QUERIES * GROUP) & (query < count)
    query_position = before + query
    lanes = tl.arange(0, BLOCK_DIM)
    inside = lanes < DIM
    q_ptrs = q_ptr + (start_token + query[:, None]) * q_stride + head[:, None] * q_head_stride + lanes[None, :]
    q = tl.load(q_ptrs, mask=valid[:, None] & inside[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_DIM], tl.float32)
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(before + first_query - WINDOW + 1, 0) // TILE * TILE
    end = before + tl.minimum(first_query + QUERIES, count)
    for start in range(begin, end, TILE):
        position = start + tl.arange(0, TILE)
        seen = position < end
        block = tl.load(tables_ptr + row * table_stride + position // BLOCK, mask=seen, other=0).to(tl.int64)
        at = kv_head * cache_head_stride + (block * BLOCK + position % BLOCK) * DIM
        offsets = at[:, None] + lanes[None, :]
        visible = seen[None, :] & (position[None, :] <= query_position[:, None])
        if WINDOW > 0:
            visible = visible & (position[None, :] > query_position[:, None] - WINDOW)
        mask = seen[:, None] & inside[None, :]
        peak, total, acc = _attend_tile(
            q, k_cache_ptr + offsets, v_cache_ptr + offsets, mask, visible, peak, total, acc, scale, UPCAST
        )
    result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_ptrs = out_ptr + ((start_token + query[:, None]) * heads + head[:, None]) * DIM + lanes[None, :]
    tl.store(out_ptrs, result.to(out_ptr.dtype.element_ty), mask=valid[:, None] & inside[None, :])
