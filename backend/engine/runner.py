"""Runs steps on a model: lists from the scheduler become tensors, tensors become logits."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from backend.attention.base import AttentionBackend
from backend.attention.cache import KVCache, bytes_per_block
from backend.attention.dense import DenseAttention
from backend.attention.native_paged import NativeAttention
from backend.attention.torch_paged import TorchAttention
from backend.engine.machine import available_bytes
from backend.engine.programs import DecodeProgram
from backend.engine.step import StepInput
from backend.models.config import ModelConfig
from backend.models.decoder import Decoder
from backend.models.errors import ModelError
from backend.native.kernels import DTYPES, load_kernels
from backend.weights.loader import LoadedModel

if TYPE_CHECKING:
    from backend.engine.graphs import Capture, DecodeGraphs

__all__ = ["ModelRunner", "blocks_that_fit"]

_CPU_SHARE = 0.25
_CPU_CAP_BYTES = 4 << 30
_CUDA_SHARE = 0.9


def blocks_that_fit(
    loaded: LoadedModel, block_size: int, memory_bytes: int | None = None, max_tokens: int | None = None
) -> int:
    """How many blocks of KV cache to make.

    Args:
        loaded: the model, already in memory.
        block_size: tokens per block.
        memory_bytes: memory to use; None takes 90% of what a GPU has free, or a quarter of the available main
            memory up to 4 GiB.
        max_tokens: never more blocks than hold this many tokens.

    Raises:
        ModelError: not even one block fits.
    """
    per_block = bytes_per_block(loaded.config, block_size, loaded.model.dtype)
    if memory_bytes is None:
        memory_bytes = _free_bytes(loaded.model.device)
    count = memory_bytes // per_block
    if max_tokens is not None:
        count = min(count, -(-max_tokens // block_size))
    if count < 1:
        raise ModelError(f"the KV cache needs at least {per_block} bytes for one block, {memory_bytes} are available")
    return count


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_SHARE)
    return min(int(available_bytes() * _CPU_SHARE), _CPU_CAP_BYTES)


def _triton_attention(config: ModelConfig, cache: KVCache) -> AttentionBackend:
    if importlib.util.find_spec("triton") is None:
        raise ModelError("serving on CUDA needs the triton package, which is not installed")
    from backend.attention.triton_paged import TritonAttention

    return TritonAttention(config, cache)


def _cpu_attention(config: ModelConfig, cache: KVCache) -> AttentionBackend:
    kernels = load_kernels() if cache.dtype in DTYPES else None
    if kernels is not None and kernels.attends(config.head_dim):
        return NativeAttention(config, cache, kernels)
    return TorchAttention(config, cache)


def _decode_graphs(model: Decoder, attention: AttentionBackend, capture: Capture | None) -> DecodeGraphs | None:
    # Imported here because it imports Triton, which a CPU does not have.
    from backend.attention.triton_paged import TritonAttention
    from backend.engine.graphs import DecodeGraphs, capture_on_cuda

    if not isinstance(attention, TritonAttention):
        return None
    reach = min(model.config.max_position, attention.cache.num_blocks * attention.cache.block_size)
    return DecodeGraphs(model, attention, max_tokens=reach, capture=capture or capture_on_cuda())


class ModelRunner:
    """A loaded model with a KV cache; the Runner of the engine.

    Args:
        loaded: the model.
        num_blocks: blocks of KV cache; None takes what fits (see blocks_that_fit).
        block_size: tokens per block.
        memory_bytes: memory for the cache when num_blocks is None.
        reserve: take main memory for the cache at once, not as it is used: no step waits for the system to clear
            a page, and what is not there is missed now.
        attention: what attends; None takes Triton on CUDA, elsewhere native kernels or torch.
        capture: how decode steps are captured; None takes CUDA graphs on CUDA and captures nothing elsewhere.

    Raises:
        ModelError: the cache does not fit.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        num_blocks: int | None = None,
        block_size: int = 16,
        *,
        memory_bytes: int | None = None,
        reserve: bool = False,
        attention: Callable[[ModelConfig, KVCache], AttentionBackend] | None = None,
        capture: Capture | None = None,
    ) -> None:
        self._loaded = loaded
        self._model = loaded.model
        if num_blocks is None:
            num_blocks = blocks_that_fit(loaded, block_size, memory_bytes)
        needed = num_blocks * bytes_per_block(loaded.config, block_size, self._model.dtype)
        if reserve and self._model.device.type == "cpu" and needed > (free := available_bytes()):
            raise ModelError(
                f"a KV cache of {num_blocks} blocks of {block_size} tokens takes {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are available; ask for fewer blocks"
            )
        try:
            cache = KVCache(
                loaded.config,
                num_blocks=num_blocks,
                block_size=block_size,
                dtype=self._model.dtype,
                device=self._model.device,
                reserve=reserve,
            )
        except (RuntimeError, MemoryError):  # the former is what torch raises, on every device
            raise ModelError(
                f"a KV cache of {num_blocks} blocks of {block_size} tokens takes {needed / 2**30:.1f} GiB, "
                "more than there is; ask for fewer blocks"
            ) from None
        on_gpu = self._model.device.type == "cuda"
        self._attention = (attention or (_triton_attention if on_gpu else _cpu_attention))(loaded.config, cache)
        self._graphs: DecodeGraphs | None = None
        self._program: DecodeProgram | None = None
        if capture is not None or on_gpu:
            self._graphs = _decode_graphs(self._model, self._attention, capture)

    @property
    def num_blocks(self) -> int:
        """How many blocks the KV cache holds."""
        return self._attention.cache.num_blocks

    @property
    def block_size(self) -> int:
        """Slots (tokens) per block."""
        return self._attention.cache.block_size

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits."""
        return self._loaded.config.vocab_size

    @property
    def max_model_len(self) -> int:
        """Longest sequence the model was made for."""
        return self._loaded.config.max_position

    @torch.inference_mode()
    def execute(self, step: StepInput) -> torch.Tensor:
        """Run the model, store K and V, and return float32 logits of shape [S, vocab_size].

        The result of a pure decode step may be overwritten by a later one: sample from it before the next call.
        """
        if self._graphs is not None and self._graphs.takes(step):
            return self._graphs.run(step)
        if self._program is not None and self._program.takes(step):
            return self._program.run(step)
        device = self._model.device
        hidden = self._model.forward(
            torch.tensor(step.token_ids, device=device),
            torch.tensor(step.positions, device=device),
            self._attention.begin(step),
            self._sampled_tokens(step, device),
        )
        return self._model.logits(hidden)

    def _sampled_tokens(self, step: StepInput, device: torch.device) -> torch.Tensor | None:
        """Index of the last query token of each sampled row; None where that is every token."""
        if len(step.sample_rows) == len(step.token_ids):
            return None
        ends: list[int] = []
        total = 0
        for queries in step.query_lens:
            total += queries
            ends.append(total - 1)
        return torch.tensor([ends[row] for row in step.sample_rows], dtype=torch.long, device=device)

    @torch.inference_mode()
    def warm_up(self, max_rows: int) -> None:
        """Make, once, what speeds up decode steps of up to `max_rows` sequences: CUDA graphs, or a native program."""
        if self._graphs is not None:
            self._graphs.prepare(max_rows)
        elif isinstance(self._attention, NativeAttention) and self._model.is_native:
            cache = self._attention.cache
            longest = min(self._loaded.config.max_position, cache.num_blocks * cache.block_size)
            self._program = DecodeProgram(self._model, self._attention, max_rows=max_rows, max_tokens=longest)

    @torch.inference_mode()
    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, before the next step."""
        self._attention.cache.copy_blocks(pairs)

    @torch.inference_mode()
    def save_blocks(self, blocks: list[int]) -> torch.Tensor:
        """Return the content of whole blocks, in all layers, held in main memory."""
        return self._attention.cache.save_blocks(blocks)

    @torch.inference_mode()
    def load_blocks(self, saved: object, first: int, blocks: list[int]) -> None:
        """Put the saved blocks number `first`, `first + 1`, ... into `blocks`."""
        assert isinstance(saved, torch.Tensor)
        self._attention.cache.load_blocks(saved, first, blocks)

    @torch.inference_mode()
    def embed(
        self, token_ids: Sequence[Sequence[int]], pooling: Literal["mean", "last"] = "mean", *, normalize: bool = True
    ) -> torch.Tensor:
        """Sentence embeddings: the last hidden states of each text, pooled. Takes no KV blocks.

        Args:
            token_ids: N texts, none of them empty.
            pooling: "mean" over all tokens, or the "last" token.
            normalize: scale each embedding to unit length.

        Returns:
            float32 [N, hidden]
        """
        device = self._model.device
        lengths = [len(ids) for ids in token_ids]
        if not lengths or min(lengths) < 1:
            raise ValueError("every text to embed needs at least one token")
        flat = torch.tensor([token for ids in token_ids for token in ids], device=device)
        positions = torch.tensor([position for length in lengths for position in range(length)], device=device)
        attend = DenseAttention(self._loaded.config, lengths, device=device)
        hidden = self._model.forward(flat, positions, attend).float()
        stops = list(itertools.accumulate(lengths))
        parts = [hidden[stop - length : stop] for stop, length in zip(stops, lengths, strict=True)]
        pooled = torch.stack([part.mean(0) if pooling == "mean" else part[-1] for part in parts])
        return torch.nn.functional.normalize(pooled, dim=-1) if normalize else pooled
