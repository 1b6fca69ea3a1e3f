"""Tiny random checkpoints of every family, made by transformers, and a loop that runs steps on them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend.engine.step import Runner, StepInput
from tests.support.late import late

transformers = late("transformers")

VOCAB = 160

_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _small(**more: Any) -> dict[str, Any]:
    return {**_SMALL, **more}


def _without_head_dim(**more: Any) -> dict[str, Any]:
    return {key: value for key, value in _small(**more).items() if key != "head_dim"}


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 512,
}

FAMILIES: dict[str, Callable[[], transformers.PreTrainedModel]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_small())),
    "llama-biased-tied": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_small(attention_bias=True, tie_word_embeddings=True))
    ),
    "llama-odd-group": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_small(hidden_size=96, num_attention_heads=6, num_key_value_heads=2))
    ),
    "llama-linear": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **_small(mlp_bias=True, rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0})
        )
    ),
    "llama3": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**_small(rope_parameters=_LLAMA3_ROPE))),
    "llama-yarn": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**_small(rope_parameters=_YARN_ROPE))
    ),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**_small(sliding_window=21))),
    "mistral-full": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**_small(sliding_window=None))
    ),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_without_head_dim())),
    "qwen2-windowed": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**_without_head_dim(use_sliding_window=True, sliding_window=13, max_window_layers=1))
    ),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**_small(head_dim=32))),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **_small(
                num_hidden_layers=3,
                sliding_window=17,
                layer_types=["sliding_attention", "sliding_attention", "full_attention"],
                query_pre_attn_scalar=24,
                final_logit_softcapping=20.0,
            )
        )
    ),
}


def tiny_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges: one id per byte, as far as the vocabulary goes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB - 3]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {letter: index + 3 for index, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def make_checkpoint(family: str, path: Path, seed: int = 0) -> transformers.PreTrainedModel:
    """Write a checkpoint and return transformers' own model of it, for reference."""
    torch.manual_seed(seed)
    model = FAMILIES[family]().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Fresh norms and biases are all ones and zeros, which would hide a swapped or missing one.
            if weight.dim() == 1:
                weight.add_(torch.randn_like(weight) * 0.2, alpha=1.0 if "norm" in name else 0.5)
    model.save_pretrained(path)
    tiny_tokenizer().save(str(path / "tokenizer.json"))
    return model


def reference_logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] of transformers, in one pass."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].float()


class Sequence:
    """One sequence of the mini loop: known tokens, computed tokens and a shuffled block table."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.computed = 0
        self.table: list[int] = []


class MiniLoop:
    """The least that can drive a Runner: hands out blocks in random order and builds steps."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self._free = list(range(runner.num_blocks))
        random.Random(seed).shuffle(self._free)

    def step(self, work: list[tuple[Sequence, int]]) -> torch.Tensor:
        """Compute the next `count` tokens of each sequence; logits of the last of each, [rows, vocab]."""
        return self.runner.execute(self.plan(work))

    def plan(self, work: list[tuple[Sequence, int]]) -> StepInput:
        """The step that computes the next `count` tokens of each sequence and samples all of them."""
        size = self.runner.block_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        contexts: list[int] = []
        for sequence, count in work:
            stop = sequence.computed + count
            assert stop <= len(sequence.ids)
            while len(sequence.table) * size < stop:
                sequence.table.append(self._free.pop())
            for position in range(sequence.computed, stop):
                tokens.append(sequence.ids[position])
                positions.append(position)
                slots.append(sequence.table[position // size] * size + position % size)
            sequence.computed = stop
            contexts.append(stop)
        counts = [count for _, count in work]
        tables = [list(sequence.table) for sequence, _ in work]
        return StepInput(tokens, positions, slots, counts, contexts, tables, list(range(len(work))))

    def prefill(self, sequence: Sequence, chunk: int) -> torch.Tensor:
        """Compute all known tokens chunk by chunk; logits after each chunk, [chunks, vocab]."""
        rows = []
        while sequence.computed < len(sequence.ids):
            count = min(chunk, len(sequence.ids) - sequence.computed)
            rows.append(self.step([(sequence, count)])[0])
        return torch.stack(rows)

    def release(self, sequence: Sequence) -> None:
        """Give a sequence's blocks back."""
        self._free.extend(sequence.table)
        sequence.table = []
        sequence.computed = 0
