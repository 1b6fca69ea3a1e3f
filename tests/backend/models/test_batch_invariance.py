"""In float32 a sequence's logits are the same bits alone and in any company."""

from __future__ import annotations

import pytest
import torch

from backend.engine.runner import ModelRunner
from backend.models.errors import ModelError
from backend.weights.loader import load_model
from tests.backend.models.checkpoints import MiniLoop, Sequence

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability() != "AVX512", reason="how sums are ordered is known for AVX-512 only"
    ),
]

TEXTS = ("The capital of France is", "def fibonacci(n):", "1 2 3 4 5 6 7 " * 9, "Once upon a time there was a")
NEW_TOKENS = 5


def test_logits_are_bitwise_equal_alone_and_in_company() -> None:
    """vllm PR#2514, exllamav2#232: the batch size changed greedy tokens."""
    torch.set_num_threads(1)
    try:
        loaded = load_model("demo", dtype="float32")
    except ModelError as error:
        pytest.skip(str(error))
    prompts = [loaded.tokenizer.encode(text) for text in TEXTS]

    alone: list[list[torch.Tensor]] = []
    for prompt in prompts:
        loop, row = MiniLoop(ModelRunner(loaded, num_blocks=16)), Sequence(list(prompt))
        logits = [loop.prefill(row, 512)[-1]]
        while len(logits) < NEW_TOKENS:
            row.ids.append(int(logits[-1].argmax()))
            logits.append(loop.step([(row, 1)])[0].clone())
        alone.append(logits)

    # One row more joins at every step: prompts are computed beside decodes, in batches of every size.
    loop = MiniLoop(ModelRunner(loaded, num_blocks=64), seed=3)
    rows = [Sequence(list(prompt)) for prompt in prompts]
    done = [0] * len(rows)
    for number in range(NEW_TOKENS + len(rows)):
        active = [index for index in range(len(rows)) if index <= number and done[index] < NEW_TOKENS]
        scores = loop.step([(rows[index], len(rows[index].ids) - rows[index].computed) for index in active])
        for index, logits_now in zip(active, scores, strict=True):
            assert torch.equal(logits_now, alone[index][done[index]])
            rows[index].ids.append(int(logits_now.argmax()))
            done[index] += 1
        if all(count == NEW_TOKENS for count in done):
            break
    assert done == [NEW_TOKENS] * len(rows)
