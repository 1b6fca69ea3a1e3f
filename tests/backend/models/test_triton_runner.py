"""A whole model on the interpreted kernels, eagerly and from static buffers, against transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own (test_triton_process.py)", allow_module_level=True)

from backend.attention.cache import KVCache
from backend.attention.triton_paged import TritonAttention
from backend.engine.graphs import DecodeGraphs
from backend.engine.runner import ModelRunner
from backend.weights.loader import load_model
from tests.backend.models.checkpoints import VOCAB, MiniLoop, Sequence, make_checkpoint, reference_logits

pytestmark = pytest.mark.triton


def test_static_decodes_are_right_while_batches_grow_and_shrink(tmp_path: Path) -> None:
    """sglang PR#24743, #32555, TensorRT-LLM PR#17110: stale padding and values frozen at capture."""
    torch.set_num_threads(1)
    reference = make_checkpoint("mistral", tmp_path)
    captured: list[Callable[[], torch.Tensor]] = []

    def eagerly(compute: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        captured.append(compute)
        return compute

    loaded = load_model(tmp_path, dtype="float32")
    runner = ModelRunner(loaded, num_blocks=40, block_size=4, attention=TritonAttention, capture=eagerly)
    loop = MiniLoop(runner)
    rows = [Sequence([(7 * row + 3 * index) % VOCAB for index in range(9 + 4 * row)]) for row in range(3)]
    wants = [reference_logits(reference, row.ids) for row in rows]
    loop.step([(row, len(row.ids) - 4) for row in rows])  # a prefill, run eagerly
    assert not captured
    for chosen in ((0, 1, 2), (1,), (2, 0), (0, 1, 2), (2,)):
        work = [(rows[index], 1) for index in chosen]
        got = loop.step(work)
        want = torch.stack([wants[index][rows[index].computed - 1] for index in chosen])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert len(captured) == 3  # buckets of 1, 2 and 4


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
