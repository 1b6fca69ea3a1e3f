"""The interface between a decoder and the KV cache: store a step's keys and values, attend over block tables."""

from __future__ import annotations

from typing import Protocol

import torch

from backend.attention.cache import KVCache
from backend.engine.step import StepInput

__all__ = ["AttentionBackend", "AttentionStep"]


class AttentionStep(Protocol):
    """The attention of one step: made once per step, called once per layer."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store k and v, then attend.

        Args:
            layer: index of the decoder layer.
            q: [T, num_heads, head_dim], rotated.
            k: [T, num_kv_heads, head_dim], rotated.
            v: [T, num_kv_heads, head_dim].

        Returns:
            [T, num_heads * head_dim]
        """
        ...


class AttentionBackend(Protocol):
    """Owns the KV cache and turns a step into calls on it.

    Slot -1 means "do not store": such a token attends like any other but leaves no trace.
    """

    @property
    def cache(self) -> KVCache:
        """The cache that is read and written."""
        ...

    def begin(self, step: StepInput) -> AttentionStep:
        """Lay out one step: everything that does not depend on the layer is computed here."""
        ...
