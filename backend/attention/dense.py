"""Attention without a cache, over whole texts: for embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backend.attention.chunks import attend_grouped
from backend.models.config import ModelConfig

__all__ = ["DenseAttention"]


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
