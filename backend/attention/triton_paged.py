"""Paged attention on CUDA: lays a step out as device tensors for the Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch

from backend.attention import triton_launch as kernels
from backend.attention.base import AttentionStep
from backend.attention.cache import KVCache
from backend.engine.step import StepInput
from backend.models.config import ModelConfig

__all__ = ["DecodeLayout", "TritonAttention"]


@dataclass(frozen=True, slots=True)
class DecodeLayout:
    """Rows with one query each, as device tensors."""

    tables: torch.Tensor
    """int32 [rows, width]"""
    lengths: torch.Tensor
    """int32 [rows]; 0 for padding"""
    tokens: torch.Tensor
    """int32 [rows] where their queries lie among the step's tokens"""
    splits: int


@dataclass(frozen=True, slots=True)
class _PrefillLayout:
    """Rows with several queries, as device tensors (see triton_launch.prefill)."""

    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    tile_rows: torch.Tensor
    tile_firsts: torch.Tensor


class TritonAttention:
    """The Triton implementation of AttentionBackend."""

    def __init__(self, config: ModelConfig, cache: KVCache) -> None:
        self._config = config
        self._cache = cache
        self._device = cache.keys[0].device
        on_gpu = self._device.type == "cuda"
        self._processors = torch.cuda.get_device_properties(self._device).multi_processor_count if on_gpu else 4
        # Tiny tiles under the interpreter, where every element costs Python time.
        self._tile = 16 if kernels.INTERPRETED else 64 if config.head_dim <= 128 else 32
        rows = kernels.MIN_DOT_ROWS if kernels.INTERPRETED else 128 if config.head_dim <= 128 else 64
        self._prefill_rows = max(rows, kernels.power_of_two(config.group_size))

    @property
    def cache(self) -> KVCache:
        """The cache that is read and written."""
        return self._cache

    def splits(self, rows: int) -> int:
        """Into how many parts a decode of so many rows cuts each context."""
        return kernels.splits_for(rows, self._config.num_kv_heads, self._processors)

    def begin(self, step: StepInput) -> AttentionStep:
        """Lay out one step (see AttentionBackend)."""
        decodes: list[int] = []
        prefills: list[int] = []
        starts: list[int] = []
        total = 0
        for row, queries in enumerate(step.query_lens):
            (decodes if queries == 1 else prefills).append(row)
            starts.append(total)
            total += queries
        return _TritonStep(
            self._config,
            self._cache,
            self._ints(step.slot_mapping, torch.int64),
            self._decode_layout(step, decodes, starts) if decodes else None,
            self._prefill_layout(step, prefills, starts) if prefills else None,
            tile=self._tile,
            prefill_rows=self._prefill_rows,
        )

    def begin_static(self, slots: torch.Tensor, layout: DecodeLayout) -> AttentionStep:
        """A decode step over buffers that the caller refills, for graph capture.

        Args:
            slots: int64 [rows], -1 for padding.
            layout: buffers of the same rows.
        """
        return _TritonStep(
            self._config, self._cache, slots, layout, None, tile=self._tile, prefill_rows=self._prefill_rows
        )

    def _decode_layout(self, step: StepInput, rows: list[int], starts: list[int]) -> DecodeLayout:
        return DecodeLayout(
            tables=self._tables([step.block_tables[row] for row in rows]),
            lengths=self._ints([step.context_lens[row] for row in rows]),
            tokens=self._ints([starts[row] for row in rows]),
            splits=self.splits(len(rows)),
        )

    def _prefill_layout(self, step: StepInput, rows: list[int], starts: list[int]) -> _PrefillLayout:
        per_tile = self._prefill_rows // self._config.group_size
        counts = [step.query_lens[row] for row in rows]
        tiles = [(index, first) for index, count in enumerate(counts) for first in range(0, count, per_tile)]
        # Later queries see more keys: the longest tiles start first.
        tiles.sort(key=lambda tile: -(step.context_lens[rows[tile[0]]] - counts[tile[0]] + tile[1]))
        return _PrefillLayout(
            tables=self._tables([step.block_tables[row] for row in rows]),
            lengths=self._ints([step.context_lens[row] for row in rows]),
            starts=self._ints([starts[row] for row in rows]),
            counts=self._ints(counts),
            tile_rows=self._ints([index for index, _ in tiles]),
            tile_firsts=self._ints([first for _, first in tiles]),
        )

    def _tables(self, tables: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tables))
        flat = list(chain.from_iterable([*table, *(0,) * (width - len(table))] for table in tables))
        return self._ints(flat).view(len(tables), width)

    def _ints(self, values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)


class _TritonStep:
    """One step on TritonAttention."""

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        slots: torch.Tensor,
        decodes: DecodeLayout | None,
        prefills: _PrefillLayout | None,
        *,
        tile: int,
        prefill_rows: int,
    ) -> None:
        self._config = config
        self._cache = cache
        self._slots = slots
        self._decodes = decodes
        self._prefills = prefills
        self._tile = tile
        self._prefill_rows = prefill_rows

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend (see AttentionStep)."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        kernels.store(k, v, keys, values, self._slots)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        window, scale = self._config.layers[layer].window, self._config.attention_scale
        if (decodes := self._decodes) is not None:
            kernels.decode(
                q,
                keys,
                values,
                out,
                decodes.tables,
                decodes.lengths,
                decodes.tokens,
                scale=scale,
                splits=decodes.splits,
                window=window,
                tile=self._tile,
            )
        if (rows := self._prefills) is not None:
            kernels.prefill(
                q,
                keys,
                values,
                out,
                rows.tables,
                rows.lengths,
                rows.starts,
                rows.counts,
                rows.tile_rows,
                rows.tile_firsts,
                scale=scale,
                rows=self._prefill_rows,
                window=window,
                tile=self._tile,
            )
        return out.view(q.shape[0], -1)
