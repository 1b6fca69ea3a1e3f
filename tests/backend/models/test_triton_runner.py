"""A whole model on the interpreted kernels, eagerly and from static buffers, against transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own (test_triton_process.py)", allow_module_level=True)

from backend.attention import triton_launch
from backend.attention.cache import KVCache
from backend.attention.triton_paged import TritonAttention
from backend.engine.graphs import DecodeGraphs
from backend.engine.runner import ModelRunner
from backend.weights.loader import load_model
from tests.backend.models.checkpoints import VOCAB, MiniLoop, Sequence, make_checkpoint, reference_logits

pytestmark = pytest.mark.triton


class Frozen:
    """Captures as a graph does: what the kernels were given at capture, a replay must give them too.

    A graph freezes the shapes, the scalars and the addresses of its buffers. Tensors that are made anew in every run
    (queries, outputs) have no address to compare here; in a graph they come out of its own memory pool.
    """

    BUFFERS: ClassVar = {"store": (2, 3, 4), "decode": (1, 2, 4, 5, 6)}
    """Positions of the arguments that live as long as the graph: caches, slots, tables, lengths, tokens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captured = 0
        self.replayed = 0
        self.last: dict[str, tuple[torch.Tensor, ...]] = {}
        """What each kernel was given last."""
        self._calls: list[list[object]] = []
        for name, buffers in self.BUFFERS.items():
            monkeypatch.setattr(triton_launch, name, self._watched(getattr(triton_launch, name), buffers))

    def __call__(self, compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self._calls = []
        compute()
        frozen = self._calls
        assert frozen
        self.captured += 1

        def replay() -> torch.Tensor:
            self._calls = []
            output = compute()
            assert self._calls == frozen
            self.replayed += 1
            return output

        return replay

    def _watched(self, kernel: Callable[..., None], buffers: tuple[int, ...]) -> Callable[..., None]:
        def watched(*args: Any, **scalars: Any) -> None:
            tensors = [
                (tuple(arg.shape), arg.stride(), arg.dtype, arg.data_ptr() if place in buffers else None)
                for place, arg in enumerate(args)
            ]
            self._calls.append([kernel.__name__, tensors, scalars])
            self.last[kernel.__name__] = args
            kernel(*args, **scalars)

        return watched


def test_static_decodes_are_right_while_batches_grow_and_shrink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sglang PR#24743, #32555, TensorRT-LLM PR#17110: stale padding and values frozen at capture."""
    torch.set_num_threads(1)
    reference = make_checkpoint("mistral", tmp_path)
    frozen = Frozen(monkeypatch)
    loaded = load_model(tmp_path, dtype="float32")
    runner = ModelRunner(loaded, num_blocks=40, block_size=4, attention=TritonAttention, capture=frozen)
    loop = MiniLoop(runner)
    rows = [Sequence([(7 * row + 3 * index) % VOCAB for index in range(9 + 4 * row)]) for row in range(4)]
    wants = [reference_logits(reference, row.ids) for row in rows]
    loop.step([(row, len(row.ids) - 6) for row in rows])  # a prefill, run eagerly
    assert not frozen.captured
    # From four rows to three within one bucket, and then on with the row that became padding.
    for chosen in ((0, 1, 2, 3), (0, 1, 2), (3, 1), (1,), (3, 2, 0), (0, 1, 2, 3)):
        work = [(rows[index], 1) for index in chosen]
        got = loop.step(work)
        want = torch.stack([wants[index][rows[index].computed - 1] for index in chosen])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        slots, lengths = frozen.last["store"][4], frozen.last["decode"][5]
        assert (slots[len(chosen) :] == -1).all(), "padding writes nothing"
        assert (lengths[len(chosen) :] == 0).all(), "padding reads nothing"
    assert (frozen.captured, frozen.replayed) == (3, 6)  # buckets of 1, 2 and 4


def test_warming_up_captures_every_bucket_a_batch_can_fall_into(tmp_path: Path) -> None:
    """xllm PR#1939: padding rows need metadata that is valid."""
    make_checkpoint("llama", tmp_path)
    loaded = load_model(tmp_path, dtype="float32")
    sizes: list[int] = []
    device = torch.device("cpu")
    cache = KVCache(loaded.config, num_blocks=8, block_size=4, dtype=torch.float32, device=device)

    def capture(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        # Padding rows only: an empty batch of the bucket's size.
        sizes.append(compute().shape[0])
        return compute

    attention = TritonAttention(loaded.config, cache)
    DecodeGraphs(loaded.model, attention, max_tokens=32, capture=capture).prepare(3)
    assert sizes == [4, 2, 1]
