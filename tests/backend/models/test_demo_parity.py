"""The demo model writes what transformers writes on the same dequantised weights, alone and in company."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

from backend.engine.core import EngineCore
from backend.engine.options import EngineOptions
from backend.engine.request import GenerationRequest, SamplingParams
from backend.engine.runner import ModelRunner
from backend.models.errors import ModelError
from backend.weights.gguf_config import gguf_config
from backend.weights.gguf_file import GGUFFile
from backend.weights.loader import LoadedModel, load_model
from backend.weights.locate import locate_model
from backend.weights.sources import GGUFSource
from policies.fcfs import FCFS
from tests.backend.models.checkpoints import MiniLoop, Sequence
from tests.support.late import late

transformers = late("transformers")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NEW_TOKENS = 10
"""With thirty prompts of any length, most answers cross the end of a block of 16."""
MARGIN = 1e-3
"""Logits closer than this may change places with the order of a sum; equal ids else."""

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Write one sentence about the sea.",
    "2 + 2 =",
    "¿Cómo se dice 'good morning' en español?",
    "Summarise in one line: the quick brown fox jumps over the lazy dog, who does not care at all.",
    "List the days of the week.",
    "Who wrote Hamlet?",
    "日本の首都はどこですか?",
    "Explain gravity to a child.",
)
TOPICS = ("the moon", "bread", "a prime number", "Python", "the French Revolution", "coffee", "rain", "chess",
          "whales", "the number zero")  # fmt: skip
ASKED = ("Tell me one fact about {}.", "Write a haiku about {}.", "Why does {} matter? Answer in ten words.")
CONTINUATIONS = (
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "1, 1, 2, 3, 5, 8,",
    "a",
    "🙂🙂🙂",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are as follows. First, energy cannot be created or destroyed. " * 4,
    "\tindented\ttext\n\n",
    "SELECT name FROM users WHERE",
)


@pytest.fixture(scope="module")
def demo() -> LoadedModel:
    torch.set_num_threads(1)
    try:
        return load_model("demo", dtype="float32")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def prompts(demo: LoadedModel) -> list[list[int]]:
    tokenizer = demo.tokenizer
    asked = [text.format(topic) for text, topic in zip(itertools.cycle(ASKED), TOPICS, strict=False)]
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in (*QUESTIONS, *asked)]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in (*chats, *CONTINUATIONS)]
    assert len(ids) == 30
    return ids


@pytest.fixture(scope="module")
def reference(demo: LoadedModel) -> transformers.PreTrainedModel:
    """transformers' Llama, filled with the weights as the file stores them, tensor by tensor."""
    file = GGUFFile(locate_model("demo"))
    family, config = gguf_config(file)
    source = GGUFSource(file, family, config)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.max_position,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tie_embeddings,
            rope_parameters={"rope_type": "default", "rope_theta": config.ropes[0].theta},
        )
    )
    outcome = model.load_state_dict({name: source.get(name) for name in source.names()}, strict=False)
    assert outcome.missing_keys in ([], ["lm_head.weight"])
    assert not outcome.unexpected_keys
    return model.eval()


Check = Callable[[list[int], list[int]], None]


@pytest.fixture(scope="module")
def check(reference: transformers.PreTrainedModel) -> Check:
    """Checks that each id is transformers' greedy choice after the prompt and the ids before it."""
    seen: set[tuple[int, ...]] = set()

    def check(prompt: list[int], got: list[int]) -> None:
        text = (*prompt, *got)
        if text in seen:
            return
        with torch.inference_mode():
            logits = reference(torch.tensor([text[:-1]]), logits_to_keep=len(got)).logits[0]
        for position, (scores, ours) in enumerate(zip(logits, got, strict=True)):
            theirs = int(scores.argmax())
            assert float(scores[theirs] - scores[ours]) < MARGIN, f"token {position}: {ours} instead of {theirs}"
        seen.add(text)

    return check


def test_greedy_ids_equal_transformers_alone(demo: LoadedModel, prompts: list[list[int]], check: Check) -> None:
    loop = MiniLoop(ModelRunner(demo, num_blocks=64, block_size=16))
    for ids in prompts[::3]:
        sequence = Sequence(list(ids))
        logits = loop.prefill(sequence, 512)[-1]
        for _ in range(NEW_TOKENS - 1):
            sequence.ids.append(int(logits.argmax()))
            logits = loop.step([(sequence, 1)])[0]
        sequence.ids.append(int(logits.argmax()))
        check(ids, sequence.ids[len(ids) :])
        loop.release(sequence)


def test_greedy_ids_equal_transformers_in_mixed_batches_of_eight(
    demo: LoadedModel, prompts: list[list[int]], check: Check
) -> None:
    options = EngineOptions(
        model=demo.path, num_blocks=128, max_num_seqs=8, max_num_batched_tokens=64, prefill_chunk=32
    ).resolve("cpu")
    core = EngineCore(
        ModelRunner(demo, num_blocks=128, block_size=16),
        demo.tokenizer,
        options,
        FCFS(),
        eos_token_ids=demo.eos_token_ids,
        max_model_len=demo.config.max_position,
        clock=itertools.count().__next__,
        seeds=random.Random(0),
        root=bytes(16),
    )
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    outputs: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    for index, ids in enumerate(prompts):
        core.add(GenerationRequest(id=str(index), prompt_token_ids=ids, params=params))
    most_running = 0
    while core.has_work:
        for delta in core.step():
            outputs[delta.request_id] += delta.token_ids
        most_running = max(most_running, core.stats().running)
    assert most_running == 8
    for ids, got in zip(prompts, outputs.values(), strict=True):
        assert len(got) == NEW_TOKENS
        check(ids, got)
