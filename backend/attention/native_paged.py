"""Paged attention by native kernels: what runs on the CPU wherever they can be compiled.

A decode row is read from the cache where it lies, block by block; nothing is gathered and nothing padded. Prefill
chunks are attended as in `torch_paged`, whose matrix products are worth a gather.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from backend.attention.base import AttentionStep
from backend.attention.cache import KVCache
from backend.attention.chunks import Chunk, attend_chunk, first_visible, lay_out
from backend.engine.step import StepInput
from backend.models.config import ModelConfig
from backend.native.kernels import DecodeRows, Kernels
from backend.native.team import fresh

__all__ = ["NativeAttention"]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the layers with one sliding window read the cache in one step."""

    rows: DecodeRows | None
    chunks: tuple[Chunk, ...]


class NativeAttention:
    """The AttentionBackend over native kernels."""

    def __init__(self, config: ModelConfig, cache: KVCache, kernels: Kernels) -> None:
        self._config = config
        self._cache = cache
        self._kernels = kernels

    @property
    def cache(self) -> KVCache:
        """The cache that is read and written."""
        return self._cache

    def begin(self, step: StepInput) -> AttentionStep:
        """Lay out one step (see AttentionBackend)."""
        layouts = {window: self._layout(step, window) for window in self._config.windows}
        return _NativeStep(self._config, self._cache, self._kernels, layouts, torch.tensor(step.slot_mapping))

    def begin_static(self, slots: torch.Tensor, rows: dict[int | None, DecodeRows]) -> AttentionStep:
        """A decode step over buffers that whoever calls fills before each use.

        Args:
            slots: int64 [R].
            rows: what the R rows see, for each sliding window that a layer has.
        """
        layouts = {window: _Layout(seen, ()) for window, seen in rows.items()}
        return _NativeStep(self._config, self._cache, self._kernels, layouts, slots)

    def _layout(self, step: StepInput, window: int | None) -> _Layout:
        tables: list[list[int]] = []
        starts: list[int] = []
        stops: list[int] = []
        tokens: list[int] = []
        chunks: list[Chunk] = []
        at = 0
        for queries, context, table in zip(step.query_lens, step.context_lens, step.block_tables, strict=True):
            if queries == 1:
                tables.append(table)
                starts.append(first_visible(context - 1, window))
                stops.append(context)
                tokens.append(at)
            else:
                chunks.append(lay_out(self._cache, at, queries, context, table, window))
            at += queries
        return _Layout(DecodeRows.of(tables, starts, stops, tokens) if tables else None, tuple(chunks))


class _NativeStep:
    """One step on NativeAttention."""

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        kernels: Kernels,
        layouts: dict[int | None, _Layout],
        slots: torch.Tensor,
    ) -> None:
        self._config = config
        self._cache = cache
        self._kernels = kernels
        self._layouts = layouts
        self._slots = slots

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend (see AttentionStep)."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        self._kernels.store(keys, values, k, v, self._slots)
        layout = self._layouts[self._config.layers[layer].window]
        scale = self._config.attention_scale
        out = fresh(*q.shape, dtype=q.dtype)
        if layout.rows is not None:
            self._kernels.attend(out, q, keys, values, layout.rows, scale)
        for chunk in layout.chunks:
            out[chunk.start : chunk.stop] = attend_chunk(chunk, q, k, v, keys, values, scale)
        return out.view(q.shape[0], -1)
