"""How the KV cache is sized, and what the runner refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.attention.cache import bytes_per_block
from backend.engine import runner as runner_module
from backend.engine.runner import ModelRunner, blocks_that_fit
from backend.engine.step import EmbeddingRunner, OffloadRunner
from backend.models.errors import ModelError
from backend.weights.loader import LoadedModel, choose_dtype, load_model
from tests.backend.models.checkpoints import VOCAB, MiniLoop, Sequence, make_checkpoint


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    path: Path = tmp_path_factory.mktemp("llama")
    make_checkpoint("llama", path)
    return load_model(path, dtype="float32")


def test_a_cache_takes_the_memory_it_is_given(loaded: LoadedModel) -> None:
    per_block = bytes_per_block(loaded.config, 8, torch.float32)
    assert per_block == 2 * 2 * 2 * 32 * 8 * 4
    assert blocks_that_fit(loaded, 8, memory_bytes=10 * per_block + 5) == 10
    assert blocks_that_fit(loaded, 8, memory_bytes=10 * per_block, max_tokens=41) == 6
    runner = ModelRunner(loaded, block_size=8, memory_bytes=3 * per_block)
    assert (runner.num_blocks, runner.block_size, runner.vocab_size) == (3, 8, VOCAB)


def test_without_a_number_some_of_the_free_memory_is_taken(loaded: LoadedModel) -> None:
    count = blocks_that_fit(loaded, 16)
    assert 1 <= count * bytes_per_block(loaded.config, 16, torch.float32) <= 4 << 30


def test_too_little_memory_is_refused_with_the_least_that_works(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match=r"at least 8192 bytes for one block, 100 are available"):
        blocks_that_fit(loaded, 8, memory_bytes=100)


def test_a_cache_larger_than_memory_is_refused_in_one_line(loaded: LoadedModel) -> None:
    with pytest.raises(ModelError, match=r"takes \d+\.\d GiB, more than there is; ask for fewer blocks"):
        ModelRunner(loaded, num_blocks=1 << 40, block_size=16)


def test_a_cache_to_reserve_must_fit_into_what_is_available(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 64 * bytes_per_block(loaded.config, 16, torch.float32)
    monkeypatch.setattr(runner_module, "available_bytes", lambda: needed - 1)
    with pytest.raises(ModelError, match=r"takes 0\.0 GiB, and 0\.0 GiB are available; ask for fewer blocks"):
        ModelRunner(loaded, num_blocks=64, block_size=16, reserve=True)
    assert ModelRunner(loaded, num_blocks=64, block_size=16).num_blocks == 64
    monkeypatch.setattr(runner_module, "available_bytes", lambda: needed)
    assert ModelRunner(loaded, num_blocks=64, block_size=16, reserve=True).num_blocks == 64


def test_only_the_rows_asked_for_get_logits(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, num_blocks=16, block_size=4)
    step = MiniLoop(runner).plan([(Sequence(ids), len(ids)) for ids in ([1, 2, 3], [4, 5, 6, 7, 8], [9])])
    everything = runner.execute(step)
    assert everything.shape == (3, VOCAB)
    assert everything.dtype == torch.float32
    torch.testing.assert_close(runner.execute(step._replace(sample_rows=[1])), everything[1:2])
    assert runner.execute(step._replace(sample_rows=[])).shape == (0, VOCAB)


def test_the_runner_embeds_and_offloads(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, num_blocks=2)
    assert isinstance(runner, EmbeddingRunner)
    assert isinstance(runner, OffloadRunner)


def test_a_sequence_goes_on_after_its_blocks_were_moved_out_and_in_again(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, num_blocks=8, block_size=4)
    loop = MiniLoop(runner)
    row = Sequence([1, 2, 3, 4, 5, 6, 7, 8, 9])
    loop.step([(row, 8)])
    want = loop.step([(row, 1)])
    saved = runner.save_blocks(row.table)
    loop.prefill(Sequence([9] * 12), 12)
    row.computed -= 1
    row.table = [(block + 3) % 8 for block in row.table]
    runner.load_blocks(saved, 0, row.table)
    torch.testing.assert_close(loop.step([(row, 1)]), want)


def test_an_empty_text_cannot_be_embedded(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, num_blocks=1)
    with pytest.raises(ValueError, match="at least one token"):
        runner.embed([[1, 2], []])


def test_embeddings_have_unit_length_unless_raw_ones_are_wanted(loaded: LoadedModel) -> None:
    runner = ModelRunner(loaded, num_blocks=1)
    lengths = runner.embed([[1, 2, 3], [4]]).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.ones(2))
    assert not torch.allclose(runner.embed([[1, 2, 3]], normalize=False).norm(), torch.ones(1))


def test_dtypes_are_chosen_by_name_and_an_unknown_one_is_refused(loaded: LoadedModel) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_dtype("bfloat16", loaded.config, cpu) is torch.bfloat16
    assert choose_dtype("auto", loaded.config, cpu) is torch.float32  # a float32 checkpoint stays float32
    assert choose_dtype("auto", loaded.config, cuda) is torch.bfloat16
    with pytest.raises(ModelError, match="dtype 'int4' is not supported"):
        choose_dtype("int4", loaded.config, cpu)
