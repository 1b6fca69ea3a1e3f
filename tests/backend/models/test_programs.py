"""A decode step from its program has the bits that it has without one, for every family and any number of rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backend.engine.runner import ModelRunner
from backend.engine.step import StepInput
from backend.native.kernels import load_kernels
from backend.weights.loader import load_model
from tests.backend.models.checkpoints import FAMILIES, VOCAB, make_checkpoint

BLOCKS, BLOCK = 80, 4
MOST = 12

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no C compiler")


@pytest.fixture(params=[1, 3], ids=["1-thread", "3-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, path)
    return path


def _decodes(count: int, picker: random.Random) -> StepInput:
    """`count` sequences of any length, whatever their blocks hold, at their last token."""
    contexts = [picker.randint(1, 6 * BLOCK) for _ in range(count)]
    free = picker.sample(range(BLOCKS), BLOCKS)
    tables = [[free.pop() for _ in range(-(-context // BLOCK))] for context in contexts]
    slots = [table[-1] * BLOCK + (context - 1) % BLOCK for table, context in zip(tables, contexts, strict=True)]
    return StepInput(
        token_ids=[picker.randrange(VOCAB) for _ in range(count)],
        positions=[context - 1 for context in contexts],
        slot_mapping=slots,
        query_lens=[1] * count,
        context_lens=contexts,
        block_tables=tables,
        sample_rows=list(range(count)),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_program_computes_what_the_decoder_does(checkpoint: Path, dtype: str, threads: int) -> None:
    loaded = load_model(checkpoint, dtype=dtype)
    plain, programmed = (ModelRunner(loaded, BLOCKS, BLOCK) for _ in range(2))
    programmed.warm_up(MOST)
    assert plain._program is None
    if (programmed._program is None) != (loaded.config.head_dim % 32 != 0 or not loaded.model.is_native):
        pytest.fail("a native model with heads that the kernels attend has a program, and no other")
    picker = random.Random(5)
    for count in (MOST, 1, 7, 2, MOST, 3, 3):
        step = _decodes(count, picker)
        assert torch.equal(programmed.execute(step), plain.execute(step)), count


def test_steps_that_a_program_does_not_take_are_computed_without_it(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    loaded = load_model(tmp_path, dtype="float32")
    plain, programmed = (ModelRunner(loaded, BLOCKS, BLOCK) for _ in range(2))
    programmed.warm_up(2)
    program = programmed._program
    assert program is not None
    step = _decodes(3, random.Random(6))
    two = _decodes(2, random.Random(6))
    chunk = step._replace(
        token_ids=[5, 6, 7],
        positions=[0, 1, 2],
        slot_mapping=[4, 5, 6],
        query_lens=[3],
        context_lens=[3],
        block_tables=[[1]],
        sample_rows=[0],
    )
    assert program.takes(two)
    for other in (step, chunk, two._replace(sample_rows=[1])):
        assert not program.takes(other)
        assert torch.equal(programmed.execute(other), plain.execute(other))


def test_a_row_that_stores_nothing_leaves_the_cache_alone(tmp_path: Path) -> None:
    make_checkpoint("llama", tmp_path)
    programmed = ModelRunner(load_model(tmp_path, dtype="float32"), BLOCKS, BLOCK)
    programmed.warm_up(4)
    programmed.execute(_decodes(4, random.Random(7)))
    cache = programmed._attention.cache
    before = [keys.clone() for keys in cache.keys]
    programmed.execute(_decodes(2, random.Random(8))._replace(slot_mapping=[-1, -1]))
    assert all(torch.equal(keys, old) for keys, old in zip(cache.keys, before, strict=True))
