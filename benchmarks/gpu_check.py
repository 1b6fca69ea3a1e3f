"""The worker on a GPU: right, and how close to what the card can do. Run by gpu_check.sh."""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from backend.attention.cache import KVCache
from backend.attention.triton_paged import TritonAttention
from backend.engine.runner import ModelRunner
from backend.engine.step import StepInput
from backend.models.config import LayerConfig, ModelConfig
from backend.weights.loader import LoadedModel
from benchmarks.gpu_shapes import LLAMA_3_8B, QWEN3_0_6B, TINY, Floor, random_decoder

BLOCK = 16
KERNEL_LIMIT = 1e-2
"""Largest error allowed, relative to the largest value, in bfloat16."""
TARGETS_MS = {
    ("Llama-3-8B decode", 1): 4.4,
    ("Llama-3-8B decode", 32): 5.2,
    ("Qwen3-0.6B decode", 1): 0.6,
    ("Llama-3-8B prefill", 8): 110.0,
}
"""By what is timed and how many rows it has, on an H200. A miss is printed; only a wrong result is a failure."""
END_TO_END_TARGET = 3.0
"""Times transformers' throughput."""


def make_step(query_lens: list[int], context_lens: list[int], seed: int = 0) -> tuple[StepInput, int]:
    """A step over shuffled blocks, and how many blocks it takes."""
    counts = [-(-context // BLOCK) for context in context_lens]
    blocks = list(range(sum(counts)))
    random.Random(seed).shuffle(blocks)
    supply: Iterator[int] = iter(blocks)
    tables = [[next(supply) for _ in range(count)] for count in counts]
    positions = [p for q, n in zip(query_lens, context_lens, strict=True) for p in range(n - q, n)]
    owners = [row for row, count in enumerate(query_lens) for _ in range(count)]
    slots = [tables[row][p // BLOCK] * BLOCK + p % BLOCK for row, p in zip(owners, positions, strict=True)]
    ids = [(7 * index) % 61 for index in range(len(positions))]
    return StepInput(ids, positions, slots, query_lens, context_lens, tables, list(range(len(query_lens)))), len(
        blocks
    )


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """Attention of the last queries of a sequence in float64: [Q, H, D] over [N, Hkv, D]."""
    queries, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    k, v = (side.double().repeat_interleave(heads // kv_heads, dim=1) for side in (k, v))
    scores = torch.einsum("qhd,nhd->hqn", q.double(), k) * scale
    at = torch.arange(tokens - queries, tokens, device=q.device)[:, None]
    other = torch.arange(tokens, device=q.device)[None, :]
    hidden = other > at if window is None else (other > at) | (other <= at - window)
    return torch.einsum("hqn,nhd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def check_kernels(device: torch.device, *, tiny: bool) -> bool:
    """Every kernel in bfloat16 against float64, over shapes, windows and mixes of rows."""
    shapes = (
        [(4, 2, 16)] if tiny else [(32, 8, 128), (16, 8, 128), (9, 3, 64), (14, 2, 64), (8, 4, 256), (32, 32, 128)]
    )
    mixes = [([1, 5, 1], [20, 9, 1])] if tiny else [
        ([1] * 7, [1, 15, 16, 17, 512, 4097, 2000]),
        ([512, 1, 33, 1, 200], [512, 700, 1000, 3, 4000]),
        ([1], [8000]),
    ]  # fmt: skip
    good = True
    for heads, kv_heads, dim in shapes:
        for window in (None, 7) if tiny else (None, 100):
            worst = 0.0
            for query_lens, context_lens in mixes:
                worst = max(worst, _kernel_error(device, heads, kv_heads, dim, window, query_lens, context_lens))
            good &= worst < KERNEL_LIMIT
            verdict = "ok" if worst < KERNEL_LIMIT else "WRONG"
            print(
                f"kernels  {heads:2}/{kv_heads:<2} heads of {dim:3}  window {window!s:>4}  "
                f"error {worst:.1e}  {verdict}"
            )
    return good


def _kernel_error(
    device: torch.device,
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None,
    query_lens: list[int],
    context_lens: list[int],
) -> float:
    config: ModelConfig = replace(
        TINY,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        layers=(LayerConfig(window=window),),
        attention_scale=dim**-0.5,
    )
    step, blocks = make_step(query_lens, context_lens)
    cache = KVCache(config, num_blocks=blocks, block_size=BLOCK, dtype=torch.bfloat16, device=device)
    maker = torch.Generator(device=device).manual_seed(1)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=maker, device=device).bfloat16()

    keys, values = ([noise(n, kv_heads, dim) for n in context_lens] for _ in range(2))
    for stored, sources in ((cache.keys[0], keys), (cache.values[0], values)):
        flat = stored.view(kv_heads, -1, dim)
        for table, source, count in zip(step.block_tables, sources, query_lens, strict=True):
            before = len(source) - count
            slots = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(before)], dtype=torch.long)
            flat[:, slots.to(device)] = source[:before].transpose(0, 1)
    q = noise(len(step.token_ids), heads, dim)
    k, v = (
        torch.cat([s[len(s) - c :] for s, c in zip(sources, query_lens, strict=True)]) for sources in (keys, values)
    )
    got = TritonAttention(config, cache).begin(step)(0, q, k, v).view_as(q)
    parts = zip(torch.split(q, query_lens), keys, values, strict=True)
    want = torch.cat([exact(part, key, value, config.attention_scale, window) for part, key, value in parts])
    return float((got.double() - want).abs().max() / want.abs().max())


def _loaded(config: ModelConfig, device: torch.device) -> LoadedModel:
    """A model of random weights; it has no tokenizer, which the runner does not need."""
    import tokenizers

    from backend.tokenizer import Tokenizer

    model = random_decoder(config, device, torch.float32 if device.type == "cpu" else torch.bfloat16)
    blank = Tokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()))
    return LoadedModel(Path(), config, model, blank, frozenset())


def _median_s(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    times = []
    for _ in range(repeats + 2):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def check_steps(device: torch.device, *, tiny: bool) -> bool:
    """One decode step and one prefill step of whole models, and their share of what the card could do."""
    if tiny:
        # Everything in Triton as on a GPU; what would be captured is computed anew each time.
        runner = ModelRunner(_loaded(TINY, device), 16, BLOCK, attention=TritonAttention, capture=lambda run: run)
        return _time_steps("tiny", runner, Floor(TINY), device, batches=(1, 2), context=20, prompts=(1, 9))
    good = True
    for name, config in {"Llama-3-8B": LLAMA_3_8B, "Qwen3-0.6B": QWEN3_0_6B}.items():
        runner = ModelRunner(_loaded(config, device), 128 * 40, BLOCK)
        batches, prompts = (1, 8, 32, 128), (8, 512)
        good &= _time_steps(name, runner, Floor(config), device, batches=batches, context=512, prompts=prompts)
        del runner
        torch.cuda.empty_cache()
    return good


def _time_steps(
    name: str,
    runner: ModelRunner,
    floor: Floor,
    device: torch.device,
    *,
    batches: tuple[int, ...],
    context: int,
    prompts: tuple[int, int],
) -> bool:
    good = True
    for rows in batches:
        step, _ = make_step([1] * rows, [context] * rows)
        good &= _graphs_agree(runner, step)
        taken = _median_s(partial(runner.execute, step), device, 20)
        _print_step(f"{name} decode", rows, context, taken, floor.decode_s(rows, context))
    rows, tokens = prompts
    step, _ = make_step([tokens] * rows, [tokens] * rows)
    taken = _median_s(partial(runner.execute, step), device, 5)
    _print_step(f"{name} prefill", rows, tokens, taken, floor.prefill_s(rows, tokens))
    return good


def _print_step(what: str, rows: int, tokens: int, taken: float, least: float) -> None:
    target = TARGETS_MS.get((what, rows))
    verdict = "" if target is None else f"  target {target:g} ms  {'ok' if taken * 1e3 <= target else 'MISS'}"
    print(
        f"steps    {what:20} {rows:3} x {tokens:4}  {taken * 1e3:8.3f} ms  floor {least * 1e3:7.3f} ms  "
        f"achieved / floor {taken / least:5.2f}{verdict}"
    )


def _graphs_agree(runner: ModelRunner, step: StepInput) -> bool:
    """A replayed step gives the logits of the eager one (the eager path takes it when one row is not sampled)."""
    replayed = runner.execute(step).clone()
    eager = runner.execute(step._replace(sample_rows=step.sample_rows[:-1] or [0, 0]))
    rows = min(len(eager), len(replayed))
    error = float((replayed[:rows] - eager[:rows]).abs().max() / eager.abs().max())
    if error > 2e-2:
        print(f"steps    the captured step differs from the eager one by {error:.1e}  WRONG")
    return error <= 2e-2


def check_end_to_end(device: torch.device, *, tiny: bool) -> bool:
    """The same requests through the engine and through transformers' continuous batching, random weights."""
    import tokenizers
    import transformers

    shape = TINY if tiny else QWEN3_0_6B
    settings = transformers.Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    picker = random.Random(0)
    count, longest, most = (2, 12, 4) if tiny else (64, 512, 128)
    prompts = [
        [picker.randrange(3, shape.vocab_size) for _ in range(picker.randint(longest // 8, longest))]
        for _ in range(count)
    ]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        reference = transformers.Qwen3ForCausalLM(settings).eval().to(device=device, dtype=torch.bfloat16)
        reference.save_pretrained(folder)
        vocabulary = {f"t{index}": index for index in range(shape.vocab_size)}
        tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="t0")).save(f"{folder}/tokenizer.json")
        ours_s, ours = _run_engine(Path(folder), device, prompts, most)
    print(f"whole    the engine: {count} requests, {count * most} tokens in {ours_s:.2f} s")
    generation = transformers.GenerationConfig(
        max_new_tokens=most, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    reference.set_attn_implementation("sdpa")
    for _ in range(2):  # the first run pays for its graphs
        started = time.perf_counter()
        results = reference.generate_batch(inputs=prompts, generation_config=generation, persistent_manager=True)
        theirs_s = time.perf_counter() - started
    tokens = sum(len(result.generated_tokens) for result in results.values())
    ratio = theirs_s / ours_s
    print(
        f"whole    transformers: {tokens} tokens in {theirs_s:.2f} s, {ratio:.1f} times the engine's  "
        f"target {END_TO_END_TARGET:g}  {'ok' if ratio >= END_TO_END_TARGET else 'MISS'}"
    )
    return all(len(ids) == most for ids in ours)


def _run_engine(
    folder: Path, device: torch.device, prompts: list[list[int]], most: int
) -> tuple[float, list[list[int]]]:
    from backend.engine.build import build_core
    from backend.engine.options import EngineOptions
    from backend.engine.request import GenerationRequest, SamplingParams

    blocks = sum(-(-(len(prompt) + most) // BLOCK) for prompt in prompts) + 8
    options = EngineOptions(
        model=folder,
        device=device.type,
        block_size=BLOCK,
        num_blocks=blocks,
        max_num_seqs=len(prompts),
        prefix_cache=False,
    )
    core, _ = build_core(options, lambda _what, _share: None)
    params = SamplingParams(max_tokens=most, temperature=0.0, ignore_eos=True)
    for _ in range(2):  # the first run captures the graphs
        outputs: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
        started = time.perf_counter()
        for index, prompt in enumerate(prompts):
            core.add(GenerationRequest(id=str(index), prompt_token_ids=prompt, params=params))
        while core.has_work:
            for delta in core.step():
                outputs[delta.request_id] += delta.token_ids
        seconds = time.perf_counter() - started
    return seconds, list(outputs.values())


CHECKS: dict[str, Callable[..., bool]] = {
    "kernels": check_kernels,
    "steps": check_steps,
    "end-to-end": check_end_to_end,
}


def main() -> int:
    """Run the checks that were asked for; the exit code is 1 if one found something wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], help="which checks to run; all by default")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes on the CPU, under TRITON_INTERPRET=1")
    given = parser.parse_args()
    if not given.tiny and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    device = torch.device("cpu" if given.tiny else "cuda")
    if device.type == "cuda":
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with torch.inference_mode():
        results = [CHECKS[name](device, tiny=given.tiny) for name in given.checks or CHECKS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
