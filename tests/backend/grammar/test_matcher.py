"""The masks: what they let through is what the grammar says, and a finished text can only end."""

from __future__ import annotations

import json
import random
import threading

import pytest

pytest.importorskip("llguidance")

import torch
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend.engine.request import GenerationRequest, SamplingParams
from backend.grammar import matcher as module
from backend.grammar import source
from backend.grammar.matcher import KEPT_GRAMMARS, Grammars, Matcher, Unenforceable
from backend.tokenizer import byte_alphabet
from tests.backend.engine.fake import fake_core

EOS = 256
VOCAB = 260
"""Four ids more than the tokenizer knows, as models padded to a round size have."""


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={**byte_alphabet(), "<eos>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(byte_level().to_str, VOCAB, {EOS})


def matcher(grammars: Grammars, grammar: str) -> Matcher:
    made = grammars(grammar).result()()
    assert isinstance(made, Matcher)
    return made


def test_grammar_that_cannot_be_enforced_is_refused(grammars: Grammars) -> None:
    with pytest.raises(Unenforceable, match="Invalid type: strin"):
        matcher(grammars, source.from_json_schema({"type": "strin"}))


@pytest.mark.parametrize("grammar", [source.from_regex(r"a[^\s\S]"), source.from_lark("start: start")])
def test_grammar_that_no_text_satisfies_is_refused(grammars: Grammars, grammar: str) -> None:
    with pytest.raises(Unenforceable, match="no text satisfies it"):
        matcher(grammars, grammar)


@pytest.mark.parametrize(
    ("tokenizer", "ends"),
    [
        (Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")), {1}),
        (Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[])), set()),
    ],
    ids=["words", "no end token"],
)
def test_model_whose_tokenizer_the_library_does_not_take_refuses_every_grammar(
    tokenizer: Tokenizer, ends: set[int]
) -> None:
    grammars = Grammars(tokenizer.to_str, VOCAB, ends)
    for _ in range(2):
        with pytest.raises(Unenforceable, match="does not take this model's tokenizer"):
            matcher(grammars, source.from_choices(["a"]))


def test_grammar_that_gives_up_on_the_way_never_passes_for_a_complete_text(grammars: Grammars) -> None:
    endless = matcher(grammars, source.from_lark('start: "a" start'))
    accepted = [endless.accept(int(endless.allowed().nonzero()[0])) for _ in range(3)]
    assert not all(accepted)
    assert not accepted[-1]


def test_masks_follow_the_choices_token_by_token(grammars: Grammars) -> None:
    follows = matcher(grammars, source.from_choices(["no", "nay"]))
    seen = []
    for token in b"nay":
        mask = follows.allowed()
        assert (mask.dtype, mask.shape) == (torch.bool, (VOCAB,))
        seen.append(bytes(mask.nonzero().flatten().tolist()))
        assert follows.accept(token)
    assert seen == [b"n", b"ao", b"y"]
    assert follows.allowed().nonzero().flatten().tolist() == [EOS]
    assert follows.accept(EOS)


def test_token_that_was_not_allowed_is_told(grammars: Grammars) -> None:
    assert not matcher(grammars, source.from_choices(["no"])).accept(ord("x"))


def test_choices_of_one_request_do_not_disturb_each_other(grammars: Grammars) -> None:
    grammar = source.from_choices(["ab", "cd"])
    first, second = matcher(grammars, grammar), matcher(grammars, grammar)
    assert first.accept(ord("a"))
    assert second.accept(ord("c"))
    assert bytes(first.allowed().nonzero().flatten().tolist()) == b"b"
    assert bytes(second.allowed().nonzero().flatten().tolist()) == b"d"


def test_grammars_that_were_forgotten_are_compiled_again(grammars: Grammars) -> None:
    for i in range(KEPT_GRAMMARS + 2):
        assert matcher(grammars, source.from_choices([f"x{i}"])).accept(ord("x"))
    assert matcher(grammars, source.from_choices(["x0"])).accept(ord("x"))


def test_grammar_that_was_compiled_or_is_being_compiled_is_not_compiled_again(grammars: Grammars) -> None:
    first = source.from_choices(["shared"])
    under_way = grammars(first)
    assert grammars(str(first.encode(), "utf-8")) is under_way
    under_way.result()
    assert grammars(first) is under_way
    other = grammars(source.from_choices(["other"]))
    assert other is not under_way
    other.result()


def test_grammar_that_is_cancelled_before_its_turn_is_not_compiled_and_may_be_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []
    compile_one = module._compile

    def note(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
        compiled.append(grammar)
        return compile_one(tokenizer, grammar)

    monkeypatch.setattr(module, "_compile", note)
    go = threading.Event()

    def when_told() -> str:
        go.wait()
        return byte_level().to_str()

    grammars = Grammars(when_told, VOCAB, {EOS})
    first, second, third = (source.from_choices([name]) for name in ("first", "second", "third"))
    futures = [grammars(grammar) for grammar in (first, second, third)]
    assert futures[0].cancel()
    assert futures[1].cancel()
    again = grammars(second)
    go.set()
    assert isinstance(again.result()(), Matcher)
    assert compiled == [third, second]


def test_steps_go_on_while_a_large_schema_is_compiled(grammars: Grammars) -> None:
    """The library must let go of the interpreter meanwhile, or a thread of its own would be of no use."""
    large = source.from_json_schema(
        {
            "type": "object",
            "properties": {
                f"p{i}": {"type": "object", "properties": {"a": {"enum": [f"v{i}"]}}} for i in range(1500)
            },
        }
    )
    core = fake_core(grammars=grammars)
    core.add(GenerationRequest("running", [1], SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)))
    core.add(GenerationRequest("held", [2], SamplingParams(), grammar=large))
    compiled = grammars(large)
    tokens = 0
    while not compiled.done():
        tokens += sum(len(delta.token_ids) for delta in core.step() if delta.request_id == "running")
    assert tokens >= 20


def test_random_walk_through_the_masks_writes_valid_json(grammars: Grammars) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}, "c": {"type": "boolean"}},
        "required": ["a", "b", "c"],
        "additionalProperties": False,
    }
    chance = random.Random(5)
    for _ in range(20):
        walk = matcher(grammars, source.from_json_schema(schema))
        text: list[int] = []
        while True:
            options = walk.allowed().nonzero().flatten().tolist()
            token = EOS if EOS in options else chance.choice(options)
            assert walk.accept(token)
            if token == EOS:
                break
            text.append(token)
        document = json.loads(bytes(text))
        assert isinstance(document["a"], int)
        assert document["b"] in ("x", "y")
