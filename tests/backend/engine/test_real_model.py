"""The whole engine over a real decoder: what transformers says, through chunks, hits, forks and preemptions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.engine.batch import Batch
from backend.engine.core import EngineCore
from backend.engine.request import GenerationRequest, SamplingParams
from backend.engine.runner import ModelRunner
from backend.engine.step import Runner
from backend.weights.loader import LoadedModel, load_model
from policies.fcfs import FCFS
from tests.backend.engine.fake import Clock, fake_options
from tests.backend.engine.test_core import Results, run
from tests.backend.models.checkpoints import VOCAB, make_checkpoint, reference_logits
from tests.support.late import late

transformers = late("transformers")

MARGIN = 1e-3
"""Logits closer than this may change places with the order of a sum."""

Pair = tuple[LoadedModel, Any]


@pytest.fixture(scope="module", params=["llama-odd-group", "gemma3"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path: Path = tmp_path_factory.mktemp(request.param)
    reference = make_checkpoint(request.param, path)
    return load_model(path, dtype="float32"), reference


def engine(loaded: LoadedModel, num_blocks: int, block_size: int, **options: object) -> EngineCore:
    return EngineCore(
        ModelRunner(loaded, num_blocks, block_size),
        loaded.tokenizer,
        fake_options(**options).resolve("cpu"),
        FCFS(),
        eos_token_ids=loaded.eos_token_ids,
        max_model_len=loaded.config.max_position,
        clock=Clock(),
        seeds=random.Random(1),
        root=b"0123456789abcdef",
    )


def prompt(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 1000 + index).randrange(3, VOCAB) for index in range(length)]


def check(results: Results, requests: list[GenerationRequest], reference: transformers.PreTrainedModel) -> None:
    """Every token is transformers' choice after all tokens before it, and its log-probability transformers' own."""
    for one in requests:
        for index in range(one.n):
            result = results[one.id, index]
            assert len(result.token_ids) == one.params.max_tokens
            logits = reference_logits(reference, one.prompt_token_ids + result.token_ids)
            start = len(one.prompt_token_ids) - 1
            expected = torch.log_softmax(logits[start : start + len(result.token_ids)], -1)
            for row, token, report in zip(expected, result.token_ids, result.logprobs, strict=True):
                assert row[token] >= row.max() - MARGIN
                assert report.logprob == pytest.approx(row[token].item(), abs=MARGIN)


PARAMS = SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True, logprobs=1)


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("chunk", [1, 7, 16, 512])
def test_a_mixed_batch_in_chunks_writes_what_transformers_writes(pair: Pair, chunk: int, block_size: int) -> None:
    loaded, reference = pair
    core = engine(loaded, 400 // block_size, block_size, prefill_chunk=chunk, max_num_batched_tokens=40)
    requests = [GenerationRequest(f"r{i}", prompt(3 + 5 * i, i), PARAMS, n=1 + i % 2) for i in range(5)]
    for one in requests:
        core.add(one)
    check(run(core), requests, reference)


@pytest.mark.parametrize("rest", [0, 1, 7])
def test_a_prefix_hit_that_ends_anywhere_in_a_block_writes_what_transformers_writes(pair: Pair, rest: int) -> None:
    loaded, reference = pair
    core = engine(loaded, 64, 8)
    requests = [GenerationRequest(name, prompt(24 + rest, 1), PARAMS) for name in ("cold", "warm")]
    results = Results()
    for one in requests:
        core.add(one)
        run(core, results)
    assert results.usage["warm"].cached_tokens == (24 + rest - 1) // 8 * 8
    check(results, requests, reference)


@pytest.mark.parametrize("cache", [True, False])
def test_preemption_at_every_step_writes_what_transformers_writes(pair: Pair, cache: bool) -> None:
    loaded, reference = pair
    for at in range(1, 12):
        core = engine(loaded, 64, 4, prefill_chunk=6, prefix_cache=cache)
        requests = [GenerationRequest(f"r{i}", prompt(9 + i, i), PARAMS) for i in range(2)]
        for one in requests:
            core.add(one)
        results = Results()
        for _ in range(at):
            results.add(core.step())
        for sequence in list(core.scheduler):
            if sequence.request.id == "r0":
                core.scheduler._preempt(sequence, Batch(core.scheduler.pool))
        run(core, results)
        check(results, requests, reference)


def test_a_pool_that_is_barely_large_enough_writes_what_transformers_writes(pair: Pair) -> None:
    loaded, reference = pair
    core = engine(loaded, 9, 4, max_num_seqs=5, max_num_batched_tokens=16)
    requests = [GenerationRequest(f"r{i}", prompt(5 + 3 * i, i % 2), PARAMS, n=1 + i % 2) for i in range(5)]
    for one in requests:
        core.add(one)
    results = run(core)
    assert core.stats().preemptions > 0
    check(results, requests, reference)


def test_preempted_sequences_come_back_from_main_memory_and_no_token_changes(pair: Pair) -> None:
    loaded, reference = pair
    requests = [GenerationRequest(f"r{i}", prompt(5 + 3 * i, i), PARAMS) for i in range(4)]
    tokens, preemptions = {}, {}
    for num_blocks, offload in ((64, 0), (9, 0), (9, 9)):
        core = engine(loaded, num_blocks, 4, prefix_cache=False, offload_blocks=offload)
        saved, loaded_back = watch_offload(core.runner)
        for one in requests:
            core.add(one)
        results = run(core)
        check(results, requests, reference)
        tokens[num_blocks, offload] = {key: result.token_ids for key, result in results.items()}
        preemptions[num_blocks, offload] = core.stats().preemptions
        assert (sum(saved) > 0) == (sum(loaded_back) > 0) == (offload > 0)
    assert tokens[9, 9] == tokens[9, 0] == tokens[64, 0]
    assert preemptions[64, 0] == 0
    assert preemptions[9, 9] > 0


def watch_offload(runner: Runner) -> tuple[list[int], list[int]]:
    """Count the blocks of every save and load from here on."""
    assert isinstance(runner, ModelRunner)
    saved: list[int] = []
    loaded: list[int] = []
    save, load = runner.save_blocks, runner.load_blocks

    def save_blocks(blocks: list[int]) -> torch.Tensor:
        saved.append(len(blocks))
        return save(blocks)

    def load_blocks(content: object, first: int, blocks: list[int]) -> None:
        loaded.append(len(blocks))
        load(content, first, blocks)

    runner.save_blocks, runner.load_blocks = save_blocks, load_blocks  # type: ignore[method-assign]
    return saved, loaded
