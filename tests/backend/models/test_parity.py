"""Logits equal transformers' for every family, whatever the chunks, the blocks and the company."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.runner import ModelRunner
from backend.weights.loader import LoadedModel, load_model
from tests.backend.models.checkpoints import (
    FAMILIES,
    VOCAB,
    MiniLoop,
    Sequence,
    make_checkpoint,
    reference_logits,
)
from tests.support.late import late

transformers = late("transformers")

Pair = tuple[LoadedModel, Any]


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.set_num_threads(1)
    path: Path = tmp_path_factory.mktemp(request.param)
    reference = make_checkpoint(request.param, path)
    return load_model(path, dtype="float32"), reference


def _ids(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 1000 + index).randrange(VOCAB) for index in range(length)]


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_logits_equal_transformers_after_every_chunk(pair: Pair, chunk: int, block_size: int) -> None:
    loaded, reference = pair
    runner = ModelRunner(loaded, num_blocks=400 // block_size, block_size=block_size)
    loop = MiniLoop(runner)
    for length in (1, 5, 16, 61):
        sequence = Sequence(_ids(length, seed=length))
        got = loop.prefill(sequence, chunk)
        want = reference_logits(reference, sequence.ids)
        ends = [min(stop, length) - 1 for stop in range(chunk, length + chunk, chunk)]
        _close(got, want[ends])
        loop.release(sequence)


def test_decodes_and_chunks_of_different_rows_share_a_step(pair: Pair) -> None:
    loaded, reference = pair
    loop = MiniLoop(ModelRunner(loaded, num_blocks=80, block_size=8))
    rows = [Sequence(_ids(length, seed=length)) for length in (70, 40, 33, 9, 64, 25)]
    wants = [reference_logits(reference, row.ids) for row in rows]
    picker = random.Random(7)
    while pending := [index for index, row in enumerate(rows) if row.computed < len(row.ids)]:
        chosen = sorted(picker.sample(pending, picker.randint(1, len(pending))))
        counts = [min(picker.choice([1, 1, 1, 2, 13]), len(rows[i].ids) - rows[i].computed) for i in chosen]
        got = loop.step([(rows[i], count) for i, count in zip(chosen, counts, strict=True)])
        for logits, index in zip(got, chosen, strict=True):
            _close(logits, wants[index][rows[index].computed - 1])


def test_embeddings_are_the_pooled_last_hidden_states(pair: Pair) -> None:
    loaded, reference = pair
    runner = ModelRunner(loaded, num_blocks=4, block_size=8)
    texts = [_ids(length, seed=length) for length in (3, 40, 11)]
    with torch.inference_mode():
        states = [reference.model(input_ids=torch.tensor([ids])).last_hidden_state[0] for ids in texts]
    _close(runner.embed(texts, "mean", normalize=False), torch.stack([state.mean(0) for state in states]))
    last = torch.stack([state[-1] for state in states])
    _close(runner.embed(texts, "last"), torch.nn.functional.normalize(last, dim=-1))
