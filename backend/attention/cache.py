"""The KV cache: fixed blocks of slots, for all layers."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

from backend.models.config import ModelConfig

__all__ = ["KVCache", "bytes_per_block"]


def bytes_per_block(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Bytes that one block takes over all layers, keys and values."""
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return per_token * block_size * dtype.itemsize


def _zeros_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Main memory for a cache. A step touches blocks all over it, each on a page of its own if pages are small.

    Raises MemoryError when there is not so much.
    """
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{size} bytes cannot be had") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them: small pages serve too
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class KVCache:
    """Keys and values of `num_blocks` blocks of `block_size` slots.

    The layout is [layer, head, block, slot, dim], heads outermost: a gather of whole blocks lands as
    [head, tokens, dim], ready for attention, and a run of neighbouring blocks already is that without a copy.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        reserve: bool = False,
    ) -> None:
        """Make an empty cache; one in main memory takes pages only as they are used, or, to `reserve`, all at once.

        Raises RuntimeError or MemoryError where there is not so much memory.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (2, config.num_layers, config.num_kv_heads, num_blocks, block_size, config.head_dim)
        if device.type == "cpu":
            self._storage = _zeros_in_huge_pages(shape, dtype)
            if reserve:
                self._storage.zero_()
        else:
            self._storage = torch.zeros(shape, dtype=dtype, device=device)
        self.keys: list[torch.Tensor] = list(self._storage[0])
        """Per layer [num_kv_heads, num_blocks, block_size, head_dim]"""
        self.values: list[torch.Tensor] = list(self._storage[1])
        """Per layer [num_kv_heads, num_blocks, block_size, head_dim]"""

    @property
    def dtype(self) -> torch.dtype:
        """Element type of the cache."""
        return self._storage.dtype

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer; all sources are read before any is written."""
        if not pairs:
            return
        sources, destinations = (torch.tensor(side, device=self._storage.device) for side in zip(*pairs, strict=True))
        self._storage.index_copy_(3, destinations, self._storage.index_select(3, sources))

    def save_blocks(self, blocks: list[int]) -> torch.Tensor:
        """Whole blocks of all layers in main memory, [2, layers, num_kv_heads, blocks, block_size, head_dim].

        On a GPU the copy is queued behind the steps before it and the memory is pinned; `load_blocks` is queued
        behind the copy, so nobody has to wait.
        """
        content = self._storage.index_select(3, torch.tensor(blocks, device=self._storage.device))
        if content.device.type == "cpu":
            return content
        host = torch.empty(content.shape, dtype=content.dtype, pin_memory=True)
        return host.copy_(content, non_blocking=True)

    def load_blocks(self, saved: torch.Tensor, first: int, blocks: list[int]) -> None:
        """Put the saved blocks number `first`, `first + 1`, ... into `blocks`."""
        device = self._storage.device
        content = saved[:, :, :, first : first + len(blocks)].to(device, non_blocking=True)
        self._storage.index_copy_(3, torch.tensor(blocks, device=device), content)
