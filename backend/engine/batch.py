"""From scheduling decisions to the flat lists of a StepInput."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from backend.engine.blocks import BlockPool
from backend.engine.sequence import Saved, Sequence
from backend.engine.step import StepInput

__all__ = ["Batch", "Plan"]


class Plan(NamedTuple):
    """One step: what the runner executes, and whose rows they are."""

    step: StepInput
    rows: list[Sequence]
    """[R] the sequence of each row; decodes come first."""
    num_decodes: int
    sampled: list[Sequence]
    """[S] the sequence of each row that samples."""
    copies: list[tuple[int, int]]
    """Blocks to copy (source, destination) before the step."""
    saves: list[tuple[Saved, list[int]]]
    """Blocks of preempted sequences to save before the loads and the copies."""
    loads: list[tuple[Saved, int, list[int]]]
    """Saved content to put back before the copies: from which of its blocks on, and into which."""


class Batch:
    """Collects the rows of one step.

    Block tables are handed on by reference wherever a sequence's table is exactly as long as the step needs it,
    which is always so for decodes: a step costs nothing per block that was there before.
    """

    __slots__ = (
        "_block_tables",
        "_context_lens",
        "_copies",
        "_num_decodes",
        "_pool",
        "_positions",
        "_query_lens",
        "_sample_rows",
        "_sampled",
        "_slots",
        "_token_ids",
        "loads",
        "rows",
        "saves",
    )

    def __init__(self, pool: BlockPool) -> None:
        self.rows: list[Sequence] = []
        self.saves: list[tuple[Saved, list[int]]] = []
        self.loads: list[tuple[Saved, int, list[int]]] = []
        self._pool = pool
        self._token_ids: list[int] = []
        self._positions: list[int] = []
        self._slots: list[int] = []
        self._query_lens: list[int] = []
        self._context_lens: list[int] = []
        self._block_tables: list[list[int]] = []
        self._sample_rows: list[int] = []
        self._sampled: list[Sequence] = []
        self._copies: list[tuple[int, int]] = []
        self._num_decodes = 0

    @property
    def num_tokens(self) -> int:
        """Query tokens so far."""
        return len(self._token_ids)

    def add_decodes(self, sequences: Iterable[Sequence]) -> None:
        """Add one row with one token for each of `sequences`, whose last token is the only one not computed.

        The pool must have room for a block each; a last block that somebody else holds too is replaced by a copy.
        This is the one loop that every generated token passes through, hence the local names.
        """
        pool, refs, size = self._pool, self._pool.refs, self._pool.block_size
        rows, token_ids, positions, slots = self.rows, self._token_ids, self._positions, self._slots
        context_lens, tables = self._context_lens, self._block_tables
        for sequence in sequences:
            position = sequence.num_computed_tokens
            blocks = sequence.blocks
            offset = position - (len(blocks) - 1) * size
            if offset == size:
                blocks.append(pool.allocate())
                offset = 0
            elif refs[blocks[-1]] > 1:
                self._copies.append(pool.copy_on_write(blocks))
            rows.append(sequence)
            token_ids.append(sequence.tokens[-1])
            positions.append(position)
            slots.append(blocks[-1] * size + offset)
            context_lens.append(position + 1)
            tables.append(blocks)
        self._num_decodes = len(rows)
        self._query_lens = [1] * len(rows)
        self._sample_rows = list(range(len(rows)))
        self._sampled = list(rows)

    def add_chunk(self, sequence: Sequence, count: int) -> None:
        """Add a row with the next `count` tokens of a sequence whose blocks for them are allocated."""
        size = self._pool.block_size
        start = sequence.num_computed_tokens
        end = start + count
        if end == len(sequence.tokens):
            self._sample_rows.append(len(self.rows))
            self._sampled.append(sequence)
        self.rows.append(sequence)
        self._token_ids.extend(sequence.tokens[start:end])
        self._positions.extend(range(start, end))
        self._query_lens.append(count)
        self._context_lens.append(end)
        last = (end + size - 1) // size
        self._block_tables.append(sequence.blocks[:last])
        for index in range(start // size, last):
            base = sequence.blocks[index] * size - index * size
            self._slots.extend(range(base + max(start, index * size), base + min(end, (index + 1) * size)))

    def plan(self) -> Plan:
        """Return the finished step."""
        step = StepInput(
            self._token_ids,
            self._positions,
            self._slots,
            self._query_lens,
            self._context_lens,
            self._block_tables,
            self._sample_rows,
        )
        return Plan(step, self.rows, self._num_decodes, self._sampled, self._copies, self.saves, self.loads)
