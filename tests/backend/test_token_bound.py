"""The least number of tokens is never more than there are, whatever the text and the tokenizer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from backend.token_bound import TokenBound
from backend.tokenizer import Tokenizer, byte_alphabet

Normalizer = normalizers.Normalizer


SPACES_AND_LETTERS = (("Ġ", 4), ("a", 3))
RING = "".join(character for byte in "Å".encode() for character, value in byte_alphabet().items() if value == byte)


def byte_level(
    normalizer: Normalizer | None = None,
    *added: AddedToken,
    unknown: str = "",
    doubled: tuple[tuple[str, int], ...] = SPACES_AND_LETTERS,
) -> Backend:
    """A vocabulary with tokens of up to 16 spaces and 8 letters, without some characters of the byte alphabet."""
    vocabulary = {character: index for index, character in enumerate(byte_alphabet())}
    merges = []
    for piece, doublings in doubled:
        if len(piece) == 2:
            merges.append((piece[0], piece[1]))
            vocabulary[piece] = len(vocabulary)
        for size in (1 << power for power in range(doublings)):
            merges.append((piece * size, piece * size))
            vocabulary[piece * size * 2] = len(vocabulary)
    for character in unknown:
        del vocabulary[character]
    vocabulary = {piece: index for index, piece in enumerate(vocabulary)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_tokens(list(added))
    return backend


def sentence_piece() -> Backend:
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "aa", "▁▁", "▁▁▁▁", "aaaa"]
    merges = [("a", "a"), ("▁", "▁"), ("▁▁", "▁▁"), ("aa", "aa")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


TOKENIZERS = {
    "bytes": byte_level(),
    "NFC": byte_level(normalizers.NFC()),
    "NFKC": byte_level(normalizers.NFKC()),
    "NFKD, lower case": byte_level(normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase()])),
    "added": byte_level(None, AddedToken("<tool>"), AddedToken("aaaaaaaaaaaaaaaaaaaaaaaa", normalized=True)),
    "swallowing": byte_level(None, AddedToken("<mask>", lstrip=True, rstrip=True)),
    "unknown": byte_level(unknown="!ñð"),
    "unknown, NFKC": byte_level(normalizers.NFKC(), unknown="!ñ"),
    "composed": byte_level(normalizers.NFC(), doubled=((RING, 4),)),
    "pieces": sentence_piece(),
}
HARD = (  # what merges, composes or shrinks most
    *(" " * 16, "a" * 8, "a" * 24, "▁▁▁▁", "<tool>", "<mask>", "  <mask>   "),
    *("\u1112\u1161\u11ab", "\U0001d414\u0308\u0304", "\u2126\u0314\u0301\u0345", "A\u030a" * 16, "=\u0338"),
    *("!" * 30, "\U00040000" * 8, "\uff01" * 9, "\u212a", "\uff21", "\U000107a5", "\ufdfa", "\u037e"),
)
TEXTS = st.lists(st.one_of(st.sampled_from(HARD), st.text(max_size=4)), max_size=12).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_no_text_has_fewer_tokens(name: str) -> None:
    tokenizer = Tokenizer(TOKENIZERS[name])

    @settings(max_examples=150, deadline=None, database=None)
    @given(TEXTS)
    def holds(text: str) -> None:
        assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text))

    holds()
    assert tokenizer.least_tokens("b" * 1000) > 0


@pytest.mark.parametrize(
    ("name", "text", "least"),
    [
        ("bytes", " " * 160, 10),  # exact: tokens of 16 spaces
        ("bytes", " " * 161, 11),
        ("bytes", "a" * 80, 10),  # exact: no token has more than 8 letters
        ("bytes", "a" * 81, 11),
        ("bytes", "", 0),
        ("NFC", " " * 160, 3),  # four bytes may become one
        ("NFC", "a" * 80, 10),  # and letters stay what they are
        ("added", "a" * 48, 2),
        ("swallowing", " " * 1000, 0),
        ("swallowing", "a" * 80, 10),
        ("unknown", "!" * 1000 + " " * 16, 1),
        ("unknown", "!" * 1000 + " " * 17, 2),
        ("unknown, NFKC", " " * 1000, 0),
        ("unknown, NFKC", "a" * 80, 10),
        ("pieces", "é" * 12, 2),  # tokens of four ▁ are spelled with 12 bytes
    ],
)
def test_the_bound_is_that_of_the_longest_token(name: str, text: str, least: int) -> None:
    assert Tokenizer(TOKENIZERS[name]).least_tokens(text) == least


def without(backend: Backend, **changes: Any) -> dict[str, Any]:
    description: dict[str, Any] = json.loads(backend.to_str())
    description["model"].update(changes)
    return description


SPLIT = {"type": "WhitespaceSplit"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
REMOVE = {"type": "Split", "pattern": {"String": " "}, "behavior": "Removed", "invert": False}


@pytest.mark.parametrize(
    "description",
    [
        without(byte_level(normalizers.Strip())),
        without(byte_level(normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()]))),
        without(byte_level(normalizers.Replace(Regex(" +"), " "))),
        without(byte_level(normalizers.Replace(" ", ""))),
        without(byte_level(normalizers.Replace("abc", "a"))),
        without(byte_level(unknown="x")),
        without(sentence_piece(), byte_fallback=False),
        without(Backend(models.Unigram([("a", -1.0)], unk_id=None))),
        without(Backend(models.WordLevel({"a": 0}, unk_token="a"))),
        without(byte_level()) | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}},
        without(sentence_piece()) | {"pre_tokenizer": REMOVE},
    ],
)
def test_tokenizer_that_may_lose_some_of_the_text_has_no_bound(description: dict[str, Any]) -> None:
    assert TokenBound.of(description, byte_alphabet()) is None
