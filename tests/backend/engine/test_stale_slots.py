"""NaN in every slot that no sequence has written, before each step: nobody reads one, whatever attends."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from backend.attention.base import AttentionBackend
from backend.attention.cache import KVCache
from backend.attention.native_paged import NativeAttention
from backend.attention.torch_paged import TorchAttention
from backend.engine.core import EngineCore
from backend.engine.request import FinishReason, GenerationRequest, SamplingParams
from backend.engine.runner import ModelRunner
from backend.engine.step import StepInput
from backend.models.config import ModelConfig
from backend.native.kernels import load_kernels
from backend.weights.loader import LoadedModel, load_model
from policies.fcfs import FCFS
from tests.backend.engine.fake import Clock, fake_options
from tests.backend.engine.results import Results, run
from tests.backend.models.checkpoints import VOCAB, make_checkpoint

ATTENTION = ("torch", "native")


def attention(name: str) -> Callable[[ModelConfig, KVCache], AttentionBackend]:
    if name == "torch":
        return TorchAttention
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no C compiler")
    return lambda config, cache: NativeAttention(config, cache, kernels)


class Poisoned(ModelRunner):
    """Puts NaN, before each step, into every slot but those of computed tokens that somebody may still read."""

    core: EngineCore
    caches: list[KVCache]

    def execute(self, step: StepInput) -> torch.Tensor:
        scheduler, size = self.core.scheduler, self.block_size
        pool = scheduler.pool
        kept = {
            block * size + offset
            for block in range(self.num_blocks)
            if pool.is_published(block)
            for offset in range(size)
        }
        for sequence in scheduler:
            for position in range(sequence.num_computed_tokens):
                kept.add(sequence.blocks[position // size] * size + position % size)
        stale = torch.tensor(sorted(set(range(self.num_blocks * size)) - kept), dtype=torch.long)
        for cache in self.caches:
            for layer in (*cache.keys, *cache.values):
                layer.view(layer.shape[0], -1, layer.shape[-1]).index_fill_(1, stale, torch.nan)
        return super().execute(step)


@pytest.fixture(scope="module", params=["llama-odd-group", "gemma3"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    make_checkpoint(request.param, path)
    return path


def engine(loaded: LoadedModel, name: str, runner: type[ModelRunner], **options: object) -> EngineCore:
    caches: list[KVCache] = []
    make = attention(name)

    def keep(config: ModelConfig, cache: KVCache) -> AttentionBackend:
        caches.append(cache)
        return make(config, cache)

    resolved = fake_options(**options).resolve("cpu")
    made = runner(loaded, resolved.num_blocks, resolved.block_size, attention=keep)
    core = EngineCore(
        made,
        loaded.tokenizer,
        resolved,
        FCFS(),
        eos_token_ids=loaded.eos_token_ids,
        max_model_len=loaded.config.max_position,
        clock=Clock(),
        seeds=random.Random(1),
        root=b"0123456789abcdef",
    )
    made.core, made.caches = core, caches  # type: ignore[attr-defined]
    return core


def mix(seed: int) -> list[GenerationRequest]:
    rng = random.Random(seed)
    beginnings = [[rng.randrange(3, VOCAB) for _ in range(14)] for _ in range(2)]
    return [
        GenerationRequest(
            f"r{number}",
            [
                *rng.choice(beginnings)[: rng.randint(1, 14)],
                *(rng.randrange(3, VOCAB) for _ in range(rng.randint(0, 9))),
            ],
            SamplingParams(
                max_tokens=rng.randint(1, 9),
                temperature=rng.choice([0.0, 0.8]),
                seed=number,
                ignore_eos=True,
                logprobs=1,
            ),
            n=rng.choice([1, 1, 2, 3]),
        )
        for number in range(7)
    ]


def play(core: EngineCore, requests: list[GenerationRequest], seed: int) -> Results:
    rng, results = random.Random(seed), Results()
    for one in requests:
        core.add(one)
        for _ in range(rng.randint(0, 2)):
            results.add(core.step())
    return run(core, results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ATTENTION)
def test_what_lies_in_free_slots_changes_no_token_and_no_probability(checkpoint: Path, name: str, dtype: str) -> None:
    if name == "native" and dtype == "float16":
        pytest.skip("the native kernels attend float32 and bfloat16")
    torch.set_num_threads(1)
    loaded = load_model(checkpoint, dtype=dtype)
    # Which slots are free is the same in every dtype; what is added to them is not.
    for seed in range(6 if dtype == "float32" else 3):
        rng = random.Random(seed)
        options = {
            "num_blocks": rng.choice([9, 14, 60]),
            "block_size": rng.choice([4, 8]),
            "prefill_chunk": rng.choice([3, 7, 64]),
            "max_num_batched_tokens": rng.choice([16, 40]),
            "max_num_seqs": 5,
            "prefix_cache": rng.random() < 0.7,
            "offload_blocks": rng.choice([0, 20]),
        }
        requests = mix(seed)
        clean, poisoned = (
            play(engine(loaded, name, runner, **options), requests, seed) for runner in (ModelRunner, Poisoned)
        )
        for one in requests:
            for index in range(one.n):
                want, got = clean[one.id, index], poisoned[one.id, index]
                assert got.finish is FinishReason.LENGTH, got.error
                assert got.token_ids == want.token_ids
                assert [report.logprob for report in got.logprobs] == [report.logprob for report in want.logprobs]


@pytest.mark.parametrize("chunk", [4, 64])
@pytest.mark.parametrize("name", ATTENTION)
def test_a_sequence_whose_numbers_broke_leaves_nothing_to_those_after_it(
    checkpoint: Path, name: str, chunk: int
) -> None:
    torch.set_num_threads(1)
    loaded = load_model(checkpoint, dtype="float32")
    core = engine(loaded, name, ModelRunner, num_blocks=8, block_size=8, prefill_chunk=chunk)
    rng = random.Random(3)
    prompt = [rng.randrange(3, VOCAB) for _ in range(21)]
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    core.add(GenerationRequest("before", prompt, params))
    results = run(core)
    core.add(GenerationRequest("bad", prompt, params))
    results.add(core.step())
    (bad,) = core.scheduler
    cache = core.runner.caches[0]  # type: ignore[attr-defined]
    for block in bad.blocks:
        cache.keys[0][:, block] = torch.nan
        cache.values[-1][:, block] = torch.nan
    run(core, results)
    assert results["bad", 0].finish is FinishReason.ERROR
    for number in range(4):
        longer = [*prompt, *range(3, 3 + 5 * number)]
        core.add(GenerationRequest(f"after{number}", longer, params))
        core.add(GenerationRequest(f"beside{number}", longer[::-1], params))
        run(core, results)
        assert results[f"after{number}", 0].finish is results[f"beside{number}", 0].finish is FinishReason.LENGTH
    assert results["after0", 0].token_ids == results["before", 0].token_ids
