"""Paged attention in plain torch: what runs on the CPU, and what the Triton kernels are checked against.

Decode rows (one query) of similar context length are gathered together and attended in one call, the query heads
of a group folded into the query axis so that K and V are never repeated. Rows with several queries (prefill chunks)
are attended one by one. A row whose blocks are neighbours is read in place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from backend.attention.base import AttentionStep
from backend.attention.cache import KVCache
from backend.attention.chunks import (
    Chunk,
    Context,
    attend_chunk,
    first_visible,
    is_run,
    lay_out,
    padded_context,
    row_context,
)
from backend.engine.step import StepInput
from backend.models.config import ModelConfig

__all__ = ["TorchAttention"]

_GATHER_BYTES = 2 << 20
"""Keys gathered at once: small enough that attention finds them still in the processor's cache."""

_IN_PLACE_TOKENS = 512
"""A run of neighbouring blocks of at least so many tokens is read in place, in a call of its own."""


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Rows with one query each and about the same context length."""

    tokens: torch.Tensor
    """[rows] where their queries lie among the step's tokens."""
    context: Context
    mask: torch.Tensor | None
    """[rows, 1, 1, tokens] added to the scores; None where one row sees all that is read."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the layers with one sliding window read the cache in one step."""

    groups: tuple[_DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


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
        chunks: list[Chunk] = []
        start = 0
        for queries, context, table in zip(step.query_lens, step.context_lens, step.block_tables, strict=True):
            if queries == 1:
                first = first_visible(context - 1, window)
                skipped = first // self._cache.block_size
                lead = skipped * self._cache.block_size
                used = table[skipped : -(-context // self._cache.block_size)]
                decodes.append((context - lead, start, used))
                leads[start] = first - lead
            else:
                chunks.append(lay_out(self._cache, start, queries, context, table, window))
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
        return len(blocks) * self._cache.block_size >= _IN_PLACE_TOKENS and is_run(blocks)

    def _group(self, rows: list[tuple[int, int, list[int]]], leads: dict[int, int]) -> _DecodeGroup:
        queries = torch.tensor([query for _, query, _ in rows])
        if len(rows) == 1:
            visible, query, blocks = rows[0]
            return _DecodeGroup(queries, row_context(blocks, leads[query], visible), None)
        positions = torch.arange(max(len(blocks) for _, _, blocks in rows) * self._cache.block_size)
        stops = torch.tensor([visible for visible, _, _ in rows])[:, None]
        starts = torch.tensor([leads[query] for _, query, _ in rows])[:, None]
        seen = (positions < stops) & (positions >= starts)
        mask = torch.zeros(seen.shape, dtype=self._cache.dtype).masked_fill_(~seen, -torch.inf)
        context = padded_context([blocks for _, _, blocks in rows], seen)
        return _DecodeGroup(queries, context, mask[:, None, None, :])


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
            out[chunk.start : chunk.stop] = attend_chunk(chunk, q, k, v, keys, values, scale)
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
