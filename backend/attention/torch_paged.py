"""Paged attention in plain torch: what runs on the CPU, and what the Triton kernels are checked against.

Decode rows (one query) of similar context length are gathered together and attended in one call, the query heads
of a group folded into the query axis so that K and V are never repeated. Rows with several queries (prefill chunks)
are attended one by one. A row whose blocks are neighbours is read in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.nn.functional import scaled_dot_product_attention

from backend.attention.base import AttentionStep
from backend.attention.cache import KVCache
from backend.engine.step import StepInput
from backend.models.config import ModelConfig

__all__ = ["DenseAttention", "TorchAttention"]

_GATHER_BYTES = 2 << 20
"""Keys gathered at once: small enough that attention finds them still in the processor's cache."""

_IN_PLACE_TOKENS = 512
"""A run of neighbouring blocks of at least so many tokens is read in place, in a call of its own."""


@dataclass(frozen=True, slots=True)
class _Context:
    """Which blocks to read, in the order of the tokens they hold."""

    rows: int
    blocks: int
    """Blocks per row, padding included."""
    index: torch.Tensor | None
    """[rows * blocks] block ids; None where one row's blocks are a run."""
    start: int
    """First block of the run."""

    def read(self, cache: torch.Tensor) -> torch.Tensor:
        """[rows, heads, tokens, dim] of a layer's [heads, num_blocks, block_size, dim]."""
        heads, _, block_size, dim = cache.shape
        if self.index is None:
            run = cache[:, self.start : self.start + self.blocks]
            return run.view(1, heads, self.blocks * block_size, dim)
        gathered = cache.view(heads, -1, block_size * dim).index_select(1, self.index)
        return gathered.view(heads, self.rows, self.blocks * block_size, dim).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows with one query each and about the same context length."""

    tokens: torch.Tensor
    """[rows] where their queries lie among the step's tokens."""
    context: _Context
    mask: torch.Tensor
    """[rows, 1, 1, tokens] added to the scores."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One row with several queries."""

    start: int
    stop: int
    context: _Context | None
    """None where the chunk is the whole context: then its own K and V are all there is to read."""
    mask: torch.Tensor | None
    """[queries, tokens] added to the scores; None for plain causal attention."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the layers with one sliding window read the cache in one step."""

    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[_Chunk, ...]


def _is_run(blocks: Sequence[int]) -> bool:
    """Whether blocks lie next to each other in order."""
    return blocks[-1] - blocks[0] == len(blocks) - 1 and all(
        after - before == 1 for before, after in pairwise(blocks)
    )


def _make_context(tables: Sequence[Sequence[int]]) -> _Context:
    """Tables of equal or smaller length than the longest; short ones are padded with their own last block."""
    width = max(len(table) for table in tables)
    if len(tables) == 1 and _is_run(tables[0]):
        return _Context(rows=1, blocks=width, index=None, start=tables[0][0])
    flat = [block for table in tables for block in (*table, *(table[-1],) * (width - len(table)))]
    return _Context(rows=len(tables), blocks=width, index=torch.tensor(flat), start=0)


def _first_visible(query_position: int, window: int | None) -> int:
    """Position of the first token that a query sees."""
    return 0 if window is None else max(0, query_position - window + 1)


class TorchAttention:
    """The torch implementation of AttentionBackend."""

    def __init__(self, config: ModelConfig, cache: KVCache) -> None:
        self._config = config
        self._cache = cache

    @property
    def cache(self) -> KVCache:
        """The cache that is read and written."""
        return self._cache

    def begin(self, step: StepInput) -> AttentionStep:
        """Lay out one step (see AttentionBackend)."""
        layouts = {window: self._layout(step, window) for window in self._config.windows}
        kept: torch.Tensor | None = None
        slots = step.slot_mapping
        if min(slots) < 0:
            kept = torch.tensor([index for index, slot in enumerate(slots) if slot >= 0], dtype=torch.long)
            slots = [slot for slot in slots if slot >= 0]
        return _TorchStep(self._config, self._cache, layouts, torch.tensor(slots, dtype=torch.long), kept)

    def _layout(self, step: StepInput, window: int | None) -> _Layout:
        decodes: list[tuple[int, int, list[int]]] = []  # (visible tokens with lead-in, query index, blocks)
        leads: dict[int, int] = {}
        chunks: list[_Chunk] = []
        start = 0
        for queries, context, table in zip(step.query_lens, step.context_lens, step.block_tables, strict=True):
            if queries == 1:
                first = _first_visible(context - 1, window)
                skipped = first // self._cache.block_size
                lead = skipped * self._cache.block_size
                used = table[skipped : -(-context // self._cache.block_size)]
                decodes.append((context - lead, start, used))
                leads[start] = first - lead
            else:
                chunks.append(self._chunk(start, queries, context, table, window))
            start += queries
        decodes.sort(key=lambda row: row[0])
        groups = [self._group(rows, leads) for rows in self._buckets(decodes)]
        return _Layout(tuple(groups), tuple(chunks))

    def _buckets(self, rows: list[tuple[int, int, list[int]]]) -> list[list[tuple[int, int, list[int]]]]:
        """Split rows, shortest first, where padding would exceed an eighth or the gather would leave the cache."""
        block_bytes = self._cache.block_size * self._config.head_dim * self._config.num_kv_heads
        block_bytes *= self._cache.dtype.itemsize
        buckets: list[list[tuple[int, int, list[int]]]] = []
        for row in rows:
            blocks = len(row[2])
            if buckets:
                bucket = buckets[-1]
                shortest = len(bucket[0][2])
                fits = (len(bucket) + 1) * blocks * block_bytes <= _GATHER_BYTES
                alone = self._in_place(row[2]) or self._in_place(bucket[0][2])
                if fits and not alone and blocks <= shortest + max(1, shortest // 8):
                    bucket.append(row)
                    continue
            buckets.append([row])
        return buckets

    def _in_place(self, blocks: list[int]) -> bool:
        return len(blocks) * self._cache.block_size >= _IN_PLACE_TOKENS and _is_run(blocks)

    def _group(self, rows: list[tuple[int, int, list[int]]], leads: dict[int, int]) -> _DecodeGroup:
        context = _make_context([blocks for _, _, blocks in rows])
        positions = torch.arange(context.blocks * self._cache.block_size)
        stops = torch.tensor([visible for visible, _, _ in rows])[:, None]
        starts = torch.tensor([leads[query] for _, query, _ in rows])[:, None]
        mask = torch.zeros((len(rows), positions.numel()), dtype=self._cache.dtype)
        mask.masked_fill_((positions >= stops) | (positions < starts), -torch.inf)
        queries = torch.tensor([query for _, query, _ in rows])
        return _DecodeGroup(queries, context, mask[:, None, None, :])

    def _chunk(self, start: int, queries: int, context: int, table: list[int], window: int | None) -> _Chunk:
        size = self._cache.block_size
        if queries == context:
            bounded = window is not None and window < context
            mask = self._chunk_mask(0, queries, context, context, window) if bounded else None
            return _Chunk(start, start + queries, None, mask)
        skipped = _first_visible(context - queries, window) // size
        used = table[skipped : -(-context // size)]
        mask = self._chunk_mask(skipped * size, queries, context, len(used) * size, window)
        return _Chunk(start, start + queries, _make_context([used]), mask)

    def _chunk_mask(self, lead: int, queries: int, context: int, width: int, window: int | None) -> torch.Tensor:
        """[queries, width] for keys at positions lead, lead + 1, ...; the queries are the last of the context."""
        keys = torch.arange(lead, lead + width)[None, :]
        positions = torch.arange(context - queries, context)[:, None]
        hidden = keys > positions
        if window is not None:
            hidden |= keys <= positions - window
        return torch.zeros((queries, width), dtype=self._cache.dtype).masked_fill_(hidden, -torch.inf)


class _TorchStep:
    """One step on TorchAttention."""

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        layouts: dict[int | None, _Layout],
        slots: torch.Tensor,
        kept: torch.Tensor | None,
    ) -> None:
        self._config = config
        self._cache = cache
        self._layouts = layouts
        self._slots = slots
        self._kept = kept

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend (see AttentionStep)."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        self._store(keys, k)
        self._store(values, v)
        layout = self._layouts[self._config.layers[layer].window]
        out = torch.empty(q.shape[0], q.shape[1], q.shape[2], dtype=q.dtype)
        scale = self._config.attention_scale
        for group in layout.groups:
            out[group.tokens] = self._decode(group, q, keys, values, scale)
        for chunk in layout.chunks:
            out[chunk.start : chunk.stop] = self._prefill(chunk, q, k, v, keys, values, scale)
        return out.view(q.shape[0], -1)

    def _store(self, cache: torch.Tensor, new: torch.Tensor) -> None:
        if self._kept is not None:
            new = new[self._kept]
        heads, blocks, size, dim = cache.shape
        cache.view(heads, blocks * size, dim).index_copy_(1, self._slots, new.transpose(0, 1))

    def _decode(
        self, group: _DecodeGroup, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> torch.Tensor:
        rows, heads, dim = group.context.rows, self._config.num_kv_heads, q.shape[-1]
        folded = q[group.tokens].view(rows, heads, self._config.group_size, dim)
        context_k, context_v = group.context.read(keys), group.context.read(values)
        out = scaled_dot_product_attention(folded, context_k, context_v, attn_mask=group.mask, scale=scale)
        return out.reshape(rows, q.shape[1], dim)

    def _prefill(
        self,
        chunk: _Chunk,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
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


class DenseAttention:
    """Causal attention within each of several sequences, without a cache: for embeddings."""

    def __init__(self, config: ModelConfig, lengths: Sequence[int], *, device: torch.device) -> None:
        self._config = config
        self._lengths = tuple(lengths)
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        for window in config.windows:
            if window is not None:
                for length in set(lengths):
                    if length > window:
                        distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
                        self._masks[window, length] = ((distance >= 0) & (distance < window)).to(device)

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend within each sequence (see AttentionStep)."""
        window = self._config.layers[layer].window
        parts = []
        start = 0
        for length in self._lengths:
            rows = slice(start, start + length)
            mask = None if window is None else self._masks.get((window, length))
            keys, values = k[rows].transpose(0, 1), v[rows].transpose(0, 1)
            parts.append(attend_grouped(q[rows], keys, values, mask, self._config.attention_scale))
            start += length
        return torch.cat(parts).view(q.shape[0], -1)
