"""A model whose next token depends on every earlier token as read through the block table.

Its KV cache stores, per slot, which token at which position was written there. The logits of a row are a hash of
what the row's block table shows for the whole context: a wrong slot, a block that was freed or overwritten, a bad
prefix hit, a missed copy, a skipped or doubled chunk all change what is generated.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from backend.engine.core import EngineCore
from backend.engine.held import GrammarFactory, MakeGrammar
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.step import StepInput
from policies import Policy
from policies.registry import create_policy

VOCAB = 64
EOS = 63
MAX_MODEL_LEN = 4096


def logits_after(tokens: Items[int], vocab_size: int = VOCAB) -> np.ndarray:
    """[vocab_size] float32 logits that the fake model gives after `tokens`."""
    flat = [value for position, token in enumerate(tokens) for value in (token, position)]
    digest = hashlib.blake2b(struct.pack(f"<{len(flat)}i", *flat), digest_size=8).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    return generator.normal(scale=3.0, size=vocab_size).astype(np.float32)


def greedy(prompt: Items[int], count: int, vocab_size: int = VOCAB) -> list[int]:
    """Return the `count` tokens that follow `prompt`, computed with no engine at all."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_after(tokens, vocab_size))))
    return tokens[len(prompt) :]


class FakeRunner:
    """A Runner in plain Python that also checks every step against the contract of StepInput."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = VOCAB, budget: int | None = None) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.budget = budget
        self.kv: list[tuple[int, int] | None] = [None] * (num_blocks * block_size)
        self.steps: list[StepInput] = []
        self.tokens_computed = 0
        self.saved_blocks = 0
        self.fail_next: Exception | None = None
        self.nan_next = False

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        size = self.block_size
        for source, destination in pairs:
            assert source != destination
            self.kv[destination * size : (destination + 1) * size] = self.kv[source * size : (source + 1) * size]

    def save_blocks(self, blocks: list[int]) -> object:
        size = self.block_size
        self.saved_blocks += len(blocks)
        return [self.kv[block * size : (block + 1) * size] for block in blocks]

    def load_blocks(self, saved: object, first: int, blocks: list[int]) -> None:
        assert isinstance(saved, list)
        size = self.block_size
        for content, block in zip(saved[first:], blocks, strict=True):
            self.kv[block * size : (block + 1) * size] = content

    def execute(self, step: StepInput) -> torch.Tensor:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self._check(step)
        self.steps.append(step)
        self.tokens_computed += len(step.token_ids)
        for token, position, slot in zip(step.token_ids, step.positions, step.slot_mapping, strict=True):
            self.kv[slot] = (token, position)
        rows = [self._logits(step, row) for row in step.sample_rows]
        logits = np.stack(rows) if rows else np.zeros((0, self.vocab_size), np.float32)
        if self.nan_next:
            self.nan_next = False
            logits[0] = np.nan
        return torch.from_numpy(logits)

    def _logits(self, step: StepInput, row: int) -> np.ndarray:
        size, table = self.block_size, step.block_tables[row]
        entries = [self.kv[table[p // size] * size + p % size] for p in range(step.context_lens[row])]
        if any(entry is None for entry in entries):
            return np.full(self.vocab_size, -1.0, np.float32)  # never written: cannot agree with any reference
        flat = [value for entry in entries if entry is not None for value in entry]
        digest = hashlib.blake2b(struct.pack(f"<{len(flat)}i", *flat), digest_size=8).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
        return generator.normal(scale=3.0, size=self.vocab_size).astype(np.float32)

    def _check(self, step: StepInput) -> None:
        size = self.block_size
        rows = len(step.query_lens)
        assert rows > 0
        assert len(step.token_ids) == len(step.positions) == len(step.slot_mapping) == sum(step.query_lens)
        assert len(step.context_lens) == len(step.block_tables) == rows
        assert step.sample_rows == sorted(set(step.sample_rows))
        assert len(set(step.slot_mapping)) == len(step.slot_mapping), "two tokens in one slot"
        assert self.budget is None or len(step.token_ids) <= self.budget, "over the token budget"
        cursor = 0
        for row, (count, context) in enumerate(zip(step.query_lens, step.context_lens, strict=True)):
            table = step.block_tables[row]
            assert 1 <= count <= context
            assert len(table) == -(-context // size)
            assert all(0 <= block < self.num_blocks for block in table)
            for position in range(context - count, context):
                assert step.positions[cursor] == position
                assert step.slot_mapping[cursor] == table[position // size] * size + position % size
                cursor += 1


class FakeDecoder:
    """Sixty letters and digits, an emoji in two halves, a space, and a special end token (63)."""

    vocabulary = (
        *(bytes([byte]) for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ01234567"),
        b"\xf0\x9f",
        b"\x98\x80",
        b" ",
        b"</s>",
    )

    def __init__(self) -> None:
        self.calls = 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.calls += 1
        kept = [i for i in ids if i != EOS or not skip_special_tokens]
        return b"".join(self.vocabulary[i] for i in kept).decode("utf-8", "replace")


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def fake_options(**options: object) -> EngineOptions:
    defaults: dict[str, object] = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 8, "max_num_batched_tokens": 64}
    return EngineOptions(Path("fake"), **{**defaults, **options})  # type: ignore[arg-type]


def compiled(make: MakeGrammar) -> GrammarFactory:
    """A factory that has compiled every grammar already."""
    done: Future[MakeGrammar] = Future()
    done.set_result(make)
    return lambda grammar: done


def fake_core(
    options: EngineOptions | None = None,
    *,
    policy: Policy | None = None,
    eos: Items[int] = (EOS,),
    grammars: GrammarFactory | None = None,
    runner: FakeRunner | None = None,
    overlap: bool = False,
    decoder: FakeDecoder | None = None,
) -> EngineCore:
    """An EngineCore over a FakeRunner."""
    options = (options or fake_options()).resolve("cpu")
    assert options.num_blocks is not None
    return EngineCore(
        runner or FakeRunner(options.num_blocks, options.block_size, budget=options.max_num_batched_tokens),
        decoder or FakeDecoder(),
        options,
        policy or create_policy(options.policy, options.policy_options),
        eos_token_ids=eos,
        max_model_len=MAX_MODEL_LEN,
        clock=Clock(),
        seeds=random.Random(1),
        root=b"0123456789abcdef",
        grammars=grammars,
        overlap=overlap,
    )


def build(options: EngineOptions, progress: Callable[[str, float], None]) -> tuple[EngineCore, EngineInfo]:
    """What EngineClient.start(build="tests.backend.engine.fake:build") runs in the engine process."""
    progress("loading nothing", 0.5)
    core = fake_core(options)
    return core, replace(core.info, device="fake")


def build_overlapping(
    options: EngineOptions, progress: Callable[[str, float], None]
) -> tuple[EngineCore, EngineInfo]:
    """Like `build`, but with the loop that an asynchronous device gets."""
    core = fake_core(options, overlap=True)
    return core, core.info
