"""One step's work as plain data: what the scheduler decided and the runner executes."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch

__all__ = ["EmbeddingRunner", "OffloadRunner", "Runner", "StepInput"]


class StepInput(NamedTuple):
    """R sequences with T query tokens in all, flattened in sequence order.

    Row r's queries are the last `query_lens[r]` of `context_lens[r]` tokens, so that a first prefill chunk, a
    later chunk, a prefix hit, a resume after preemption and a decode are one case. Token p of a sequence lives in
    slot `block_tables[r][p // block_size] * block_size + p % block_size`.
    """

    token_ids: list[int]
    """[T]"""
    positions: list[int]
    """[T] position of each query token in its sequence."""
    slot_mapping: list[int]
    """[T] slot that each query token's K and V are stored in."""
    query_lens: list[int]
    """[R] >= 1"""
    context_lens: list[int]
    """[R] tokens of the sequence once this step is done, queries included."""
    block_tables: list[list[int]]
    """[R][ceil(context_len / block_size)]"""
    sample_rows: list[int]
    """[S] the rows whose last query token's logits are wanted, ascending."""


class Runner(Protocol):
    """Executes steps over a KV cache of `num_blocks` blocks of `block_size` slots.

    `execute` may return while its device is still at work. Steps and copies take effect in the order in which they
    were asked for, and the logits stay as they are until the next `execute`.
    """

    @property
    def num_blocks(self) -> int:
        """How many blocks the KV cache holds."""
        ...

    @property
    def block_size(self) -> int:
        """Slots (tokens) per block."""
        ...

    @property
    def vocab_size(self) -> int:
        """Width of a row of logits."""
        ...

    def execute(self, step: StepInput) -> torch.Tensor:
        """Run the model, store K and V, and return float32 logits of shape [S, vocab_size]."""
        ...

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, before the next step."""
        ...


@runtime_checkable
class EmbeddingRunner(Protocol):
    """A runner that can also pool a text's hidden states into one vector."""

    def embed(self, token_ids: list[list[int]], pooling: Literal["mean", "last"]) -> torch.Tensor:
        """Return float32 [N, hidden] vectors of unit length, one per text. Takes no KV blocks."""
        ...


@runtime_checkable
class OffloadRunner(Protocol):
    """A runner that can keep blocks outside of the KV cache. Both calls are in order with steps and copies."""

    def save_blocks(self, blocks: list[int]) -> object:
        """Return the content of whole blocks, in all layers; what it is, is the runner's business."""
        ...

    def load_blocks(self, saved: object, first: int, blocks: list[int]) -> None:
        """Put the saved blocks number `first`, `first + 1`, ... into `blocks`."""
        ...
