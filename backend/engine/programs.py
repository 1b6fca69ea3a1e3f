"""Decode steps on a CPU from a list of native operations that is made once: what CUDA graphs are on a GPU.

Between two operations of a step there is as much Python as some of them take, and the weights that each reads push
that Python out of the processor's caches. So the operations are written down once, over buffers, and a step fills the
buffers and runs the list in one call.
"""

from __future__ import annotations

import torch

from backend.attention.chunks import first_visible
from backend.attention.native_paged import NativeAttention
from backend.engine.step import StepInput
from backend.models.decoder import Decoder
from backend.native.kernels import DecodeRows
from backend.native.team import Program, record

__all__ = ["DecodeProgram"]

_MOST_ROWS = 64
"""Larger steps are worth their Python; and the program's logits stay small."""


class DecodeProgram:
    """Runs decode steps from one list, with the bits that they have without it.

    Args:
        model: a decoder that is native.
        attention: its attention.
        max_rows: largest step to make room for; at most 64 are.
        max_tokens: longest context.
    """

    def __init__(self, model: Decoder, attention: NativeAttention, *, max_rows: int, max_tokens: int) -> None:
        self._model = model
        self._rows = rows = min(max_rows, _MOST_ROWS)
        self._slots = torch.full((rows,), -1, dtype=torch.int64)
        width = -(-max_tokens // attention.cache.block_size)
        self._seen = {window: DecodeRows(rows, width, max_tokens) for window in model.config.windows}
        zeros = torch.zeros(rows, dtype=torch.int64)
        self._hidden, self._angles = model.inputs(zeros, zeros)
        with record() as recording:
            attend = attention.begin_static(self._slots, self._seen)
            self._products = model.weights.head.wide(model.layers(self._hidden, self._angles, attend))
        self._program = Program(recording, rows, self._products)

    def takes(self, step: StepInput) -> bool:
        """Whether a step is one that the list can run: decodes only, all sampled, no more than there is room for."""
        return len(step.query_lens) == len(step.token_ids) == len(step.sample_rows) <= self._rows

    def run(self, step: StepInput) -> torch.Tensor:
        """Logits [rows, vocab] of a decode step: a view of a buffer that the next step overwrites."""
        rows = len(step.query_lens)
        hidden, angles = self._model.inputs(torch.tensor(step.token_ids), torch.tensor(step.positions))
        self._hidden[:rows] = hidden
        for buffers, values in zip(self._angles, angles, strict=True):
            for buffer, value in zip(buffers, values, strict=True):
                buffer[:rows] = value
        self._slots[:rows] = torch.tensor(step.slot_mapping)
        for window, seen in self._seen.items():
            starts = [first_visible(context - 1, window) for context in step.context_lens]
            seen.fill(step.block_tables, starts, step.context_lens, list(range(rows)))
        self._program.run(rows)
        return self._model.capped(self._products[:rows])
