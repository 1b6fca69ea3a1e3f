"""CUDA graphs for decode: a step is captured once per batch size and replayed from buffers.

A batch is padded to the next bucket. Every replay refills all rows of the buffers: a padding row has length 0 and
slot -1, so that it reads and writes no cache. Nothing of a step is read from Python during capture but shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from backend.attention.triton_paged import DecodeLayout, TritonAttention
from backend.engine.step import StepInput
from backend.models.decoder import Decoder

__all__ = ["BUCKETS", "Capture", "DecodeGraphs", "capture_on_cuda"]

BUCKETS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes that graphs are made for; larger steps run eagerly."""

Capture = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]
"""Turns a computation over fixed buffers into its replay, which returns the same output buffer every time."""


def capture_on_cuda() -> Capture:
    """Capture into CUDA graphs that share one memory pool; one at a time may be replaying."""
    pool = torch.cuda.graph_pool_handle()

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiles kernels and lets libraries allocate their workspaces
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            output = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay

    return capture


@dataclass(frozen=True, slots=True)
class _Bucket:
    """One batch size: its buffers on the device, their twins on the host, and the replay."""

    numbers: torch.Tensor
    """int64 [3, rows]: token ids, positions, slots"""
    lengths: torch.Tensor
    """int32 [rows]"""
    tables: torch.Tensor
    """int32 [rows, width]"""
    host_numbers: torch.Tensor
    host_lengths: torch.Tensor
    host_tables: torch.Tensor
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """Runs decode steps from captured graphs.

    Args:
        model: the decoder.
        attention: its attention, on the same device.
        max_tokens: longest context; sizes the block tables.
        capture: how to capture, `capture_on_cuda()` in earnest.
    """

    def __init__(self, model: Decoder, attention: TritonAttention, *, max_tokens: int, capture: Capture) -> None:
        self._model = model
        self._attention = attention
        self._width = -(-max_tokens // attention.cache.block_size)
        self._capture = capture
        self._buckets: dict[int, _Bucket] = {}
        on_gpu = model.device.type == "cuda"
        self._uploaded: torch.cuda.Event | None = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def takes(self, step: StepInput) -> bool:
        """Whether a step is one that graphs can run: decodes only, all sampled, within the largest bucket."""
        rows = len(step.query_lens)
        return rows == len(step.token_ids) == len(step.sample_rows) and rows <= BUCKETS[-1]

    def run(self, step: StepInput) -> torch.Tensor:
        """Logits [rows, vocab] of a decode step: a view of a buffer that the next step of this size overwrites."""
        rows = len(step.query_lens)
        bucket = self._bucket(next(size for size in BUCKETS if size >= rows))
        self._fill(bucket, step)
        return bucket.replay()[:rows]

    def prepare(self, max_rows: int) -> None:
        """Capture the buckets up to a batch size now, largest first, instead of at their first use."""
        wanted = [size for size in BUCKETS if size <= max_rows] or [BUCKETS[0]]
        covering = [size for size in BUCKETS if size >= max_rows][:1]
        for size in sorted({*wanted, *covering}, reverse=True):
            self._bucket(size)

    def _bucket(self, rows: int) -> _Bucket:
        if rows not in self._buckets:
            self._buckets[rows] = self._make(rows)
        return self._buckets[rows]

    def _make(self, rows: int) -> _Bucket:
        device = self._model.device
        numbers = torch.zeros((3, rows), dtype=torch.int64, device=device)
        numbers[2] = -1
        lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        tables = torch.zeros((rows, self._width), dtype=torch.int32, device=device)
        tokens = torch.arange(rows, dtype=torch.int32, device=device)
        layout = DecodeLayout(tables=tables, lengths=lengths, tokens=tokens, splits=self._attention.splits(rows))

        def compute() -> torch.Tensor:
            attend = self._attention.begin_static(numbers[2], layout)
            return self._model.logits(self._model.forward(numbers[0], numbers[1], attend))

        def twin(buffer: torch.Tensor) -> torch.Tensor:
            return torch.zeros(buffer.shape, dtype=buffer.dtype, pin_memory=device.type == "cuda")

        return _Bucket(
            numbers=numbers,
            lengths=lengths,
            tables=tables,
            host_numbers=twin(numbers),
            host_lengths=twin(lengths),
            host_tables=twin(tables),
            replay=self._capture(compute),
        )

    def _fill(self, bucket: _Bucket, step: StepInput) -> None:
        rows = len(step.query_lens)
        if self._uploaded is not None:
            self._uploaded.synchronize()  # the twins may still be on their way from the last step
        numbers, lengths = bucket.host_numbers.numpy(), bucket.host_lengths.numpy()
        numbers[:2] = 0
        numbers[2] = -1
        numbers[0, :rows] = step.token_ids
        numbers[1, :rows] = step.positions
        numbers[2, :rows] = step.slot_mapping
        lengths[:] = 0
        lengths[:rows] = step.context_lens
        widths = np.fromiter(map(len, step.block_tables), dtype=np.int64, count=rows)
        width = int(widths.max())
        tables = bucket.host_tables.numpy()[:, :width]
        tables[:] = 0
        flat = np.fromiter(chain.from_iterable(step.block_tables), dtype=np.int32, count=int(widths.sum()))
        tables[:rows][np.arange(width) < widths[:, None]] = flat
        bucket.numbers.copy_(bucket.host_numbers, non_blocking=True)
        bucket.lengths.copy_(bucket.host_lengths, non_blocking=True)
        # Columns past the longest table keep what they held; no row is long enough to read them.
        bucket.tables[:, :width].copy_(bucket.host_tables[:, :width], non_blocking=True)
        if self._uploaded is not None:
            self._uploaded.record()
