"""The masks: what they let through is what the grammar says, and a finished text can only end."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("llguidance")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from backend.engine.errors import RequestRefused
from backend.engine.request import GenerationRequest, SamplingParams
from backend.grammar import source
from backend.grammar.matcher import KEPT_GRAMMARS, Grammars, Matcher
from backend.tokenizer import byte_alphabet

EOS = 256
VOCAB = 260
"""Four ids more than the tokenizer knows, as models padded to a round size have."""


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    tokenizer = Tokenizer(models.BPE(vocab={**byte_alphabet(), "<eos>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return Grammars(tokenizer.to_str, VOCAB, {EOS})


def matcher(grammars: Grammars, grammar: str | None) -> Matcher:
    made = grammars(GenerationRequest("r", [1], SamplingParams(), grammar=grammar, grammar_param="guided_regex"))
    assert made is not None
    return made


def test_request_without_a_grammar_is_free(grammars: Grammars) -> None:
    assert grammars(GenerationRequest("r", [1], SamplingParams())) is None


def test_grammar_that_cannot_be_enforced_is_refused(grammars: Grammars) -> None:
    with pytest.raises(RequestRefused, match="cannot be enforced"):
        matcher(grammars, source.from_json_schema({"type": "strin"}))


@pytest.mark.parametrize("grammar", [source.from_regex(r"a[^\s\S]"), source.from_lark("start: start")])
def test_grammar_that_no_text_satisfies_is_refused(grammars: Grammars, grammar: str) -> None:
    with pytest.raises(RequestRefused, match="'guided_regex' cannot be enforced: no text satisfies it") as refused:
        matcher(grammars, grammar)
    assert refused.value.param == "guided_regex"


@pytest.mark.parametrize(
    ("tokenizer", "ends"),
    [
        (Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>")), {1}),
        (Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[])), set()),
    ],
    ids=["words", "no end token"],
)
def test_model_whose_tokenizer_the_library_does_not_take_refuses_grammars_only(
    tokenizer: Tokenizer, ends: set[int]
) -> None:
    grammars = Grammars(tokenizer.to_str, VOCAB, ends)
    with pytest.raises(RequestRefused, match="does not take this model's tokenizer") as refused:
        matcher(grammars, source.from_choices(["a"]))
    assert refused.value.param == "guided_regex"
    assert grammars(GenerationRequest("r", [1], SamplingParams())) is None


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
