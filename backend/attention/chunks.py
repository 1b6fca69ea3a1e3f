"""How a step's prefill chunks are laid out and attended, one by one: rows with several queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from backend.attention.cache import KVCache

__all__ = [
    "Chunk",
    "Context",
    "attend_chunk",
    "attend_grouped",
    "first_visible",
    "is_run",
    "lay_out",
    "padded_context",
    "row_context",
]


@dataclass(frozen=True, slots=True)
class Context:
    """Which slots to read, in the order of the tokens they hold.

    Blocks are read whole and hold slots that nobody has written yet, with whatever somebody else has left there:
    NaN, for all one knows. No mask that is added to scores undoes that (NaN + -inf and 0 * NaN are NaN), so what is
    not to be seen is cut off or replaced before anybody computes with it.
    """

    rows: int
    blocks: int
    """Blocks per row, padding included."""
    index: torch.Tensor | None
    """[rows * blocks] block ids; None where one row's blocks are a run."""
    start: int
    """First block of the run."""
    first: int
    """First token that is read, counted from the first block's."""
    stop: int
    """One past the last token that is read."""
    hidden: torch.Tensor | None
    """Which of the gathered slots, [rows * blocks * block_size] in order, their row does not see; None for none."""

    def read(self, cache: torch.Tensor) -> torch.Tensor:
        """[rows, heads, stop - first, dim] of a layer's [heads, num_blocks, block_size, dim]; 0 where hidden."""
        heads, _, block_size, dim = cache.shape
        if self.index is None:
            run = cache[:, self.start : self.start + self.blocks]
            whole = run.view(1, heads, self.blocks * block_size, dim)
        else:
            gathered = cache.view(heads, -1, block_size * dim).index_select(1, self.index).view(heads, -1, dim)
            if self.hidden is not None:
                gathered.index_fill_(1, self.hidden, 0.0)
            whole = gathered.view(heads, self.rows, self.blocks * block_size, dim).transpose(0, 1)
        return whole[:, :, self.first : self.stop]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row with several queries."""

    start: int
    stop: int
    context: Context | None
    """None where the chunk is the whole context: then its own K and V are all there is to read."""
    mask: torch.Tensor | None
    """[queries, tokens] added to the scores; None for plain causal attention."""


def is_run(blocks: Sequence[int]) -> bool:
    """Whether blocks lie next to each other in order."""
    return blocks[-1] - blocks[0] == len(blocks) - 1 and all(
        after - before == 1 for before, after in pairwise(blocks)
    )


def row_context(table: Sequence[int], first: int, stop: int) -> Context:
    """The tokens `first` to `stop` - 1 of one row, counted from its table's first block."""
    run = is_run(table)
    index = None if run else torch.tensor(table)
    return Context(1, len(table), index, table[0] if run else 0, first, stop, hidden=None)


def padded_context(tables: Sequence[Sequence[int]], visible: torch.Tensor) -> Context:
    """Several rows side by side; short tables are padded with their own last block.

    Args:
        tables: the blocks of each row.
        visible: bool [rows, tokens], which tokens each row sees, tokens being the longest table's.
    """
    width = max(len(table) for table in tables)
    flat = [block for table in tables for block in (*table, *(table[-1],) * (width - len(table)))]
    hidden = (~visible).flatten().nonzero().flatten()
    return Context(len(tables), width, torch.tensor(flat), 0, 0, visible.shape[1], hidden)


def first_visible(query_position: int, window: int | None) -> int:
    """Position of the first token that a query sees."""
    return 0 if window is None else max(0, query_position - window + 1)


def lay_out(cache: KVCache, start: int, queries: int, context: int, table: list[int], window: int | None) -> Chunk:
    """The chunk of the last `queries` of `context` tokens, which are the step's tokens from `start` on."""
    size = cache.block_size
    if queries == context:
        bounded = window is not None and window < context
        mask = _mask(cache.dtype, 0, queries, context, context, window) if bounded else None
        return Chunk(start, start + queries, None, mask)
    skipped = first_visible(context - queries, window) // size
    lead = skipped * size
    mask = _mask(cache.dtype, lead, queries, context, context - lead, window)
    used = row_context(table[skipped : -(-context // size)], 0, context - lead)
    return Chunk(start, start + queries, used, mask)


def _mask(dtype: torch.dtype, lead: int, queries: int, context: int, width: int, window: int | None) -> torch.Tensor:
    """[queries, width] for keys at positions lead, lead + 1, ...; the queries are the last of the context."""
    keys = torch.arange(lead, lead + width)[None, :]
    positions = torch.arange(context - queries, context)[:, None]
    hidden = keys > positions
    if window is not None:
        hidden |= keys <= positions - window
    return torch.zeros((queries, width), dtype=dtype).masked_fill_(hidden, -torch.inf)


def attend_chunk(
    chunk: Chunk,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attend the chunk's rows of the step's q; k and v are the step's own, keys and values the layer's cache."""
    queries = q[chunk.start : chunk.stop]
    if chunk.context is None:
        context_k = k[chunk.start : chunk.stop].transpose(0, 1)
        context_v = v[chunk.start : chunk.stop].transpose(0, 1)
    else:
        context_k, context_v = chunk.context.read(keys)[0], chunk.context.read(values)[0]
    return attend_grouped(queries, context_k, context_v, chunk.mask, scale)


def attend_grouped(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Attend [queries, heads, dim] over [kv_heads, tokens, dim]; the result has the shape of q.

    The KV heads are the batch and the heads of a group share K and V by a stride of 0. Without a mask attention is
    causal over equally many queries and tokens.
    """
    queries, heads, dim = q.shape
    kv_heads, tokens, _ = k.shape
    group = heads // kv_heads
    folded = q.view(queries, kv_heads, group, dim).permute(1, 2, 0, 3)
    shared_k = k[:, None].expand(kv_heads, group, tokens, dim)
    shared_v = v[:, None].expand(kv_heads, group, tokens, dim)
    out = scaled_dot_product_attention(
        folded, shared_k, shared_v, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out.permute(2, 0, 1, 3).reshape(queries, heads, dim)
