from __future__ import annotations

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from backend.engine.detokenizer import PATIENCE, ByteDecoder, Detokenizer, StopFilter, TextDecoder
from backend.tokenizer import Tokenizer, byte_alphabet


class Bytes:
    """A decoder whose tokens are byte strings; token 0 is special."""

    def __init__(self, vocabulary: list[bytes]) -> None:
        self.vocabulary = [b"<s>", *vocabulary]
        self.decoded = 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.decoded += len(ids)
        kept = [i for i in ids if i or not skip_special_tokens]
        return b"".join(self.vocabulary[i] for i in kept).decode("utf-8", "replace")


class Real:
    """A tokenizers.Tokenizer over given pieces with a given decoder."""

    def __init__(self, pieces: list[str], decoder: decoders.Decoder) -> None:
        self.tokenizer = tokenizers.Tokenizer(
            models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token=pieces[0])
        )
        self.tokenizer.decoder = decoder
        self.tokenizer.add_special_tokens([pieces[0]])

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def pieces(decoder: TextDecoder, ids: list[int]) -> list[str]:
    return [*(decoder.put(i) for i in ids), decoder.flush()]


def cut(text: str, lengths: list[int]) -> list[bytes]:
    """Cut the UTF-8 bytes of `text` into pieces of the given lengths, and the rest."""
    data, parts = text.encode(), []
    for length in lengths:
        parts.append(data[:length])
        data = data[length:]
    return [part for part in (*parts, data) if part]


@given(st.text(max_size=30), st.lists(st.integers(1, 5), max_size=40))
@example("😀é漢字🏳️‍🌈", [1] * 40)
@settings(max_examples=200, deadline=None)
def test_split_characters_never_come_out_broken(text: str, lengths: list[int]) -> None:
    """waybarrios/vllm-mlx PR#109, tt-inference-server PR#2594: U+FFFD for split emoji."""
    vocabulary = cut(text, lengths)
    decoder = Bytes(vocabulary)
    got = pieces(TextDecoder(decoder), list(range(1, len(vocabulary) + 1)))
    assert "".join(got) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in got)


@given(st.lists(st.integers(0, 8), max_size=120))
@settings(max_examples=300, deadline=None)
def test_the_pieces_of_any_byte_soup_concatenate_to_the_decoded_whole(ids: list[int]) -> None:
    """vllm#17448: an invalid prefix must not end the stream."""
    decoder = Bytes([b"a", b"\xf0", b"\x9f", b"\x98", b"\x80", b"\x80\xf0", b"\xe6\xbc", b"\xa2 "])
    assert "".join(pieces(TextDecoder(decoder), ids)) == decoder.decode(ids)


@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_are_left_out_on_request(skip: bool) -> None:
    decoder = Bytes([b"a", b"b"])
    got = pieces(TextDecoder(decoder, skip_special_tokens=skip), [1, 0, 2, 0])
    assert "".join(got) == ("ab" if skip else "a<s>b<s>")


def test_an_incomplete_character_at_the_end_comes_out_once() -> None:
    """tt-inference-server PR#2594."""
    decoder = Bytes([b"a", b"\xf0\x9f", b"\x98"])
    assert pieces(TextDecoder(decoder), [1, 2, 3]) == ["a", "", "", "\ufffd"]


def test_a_real_replacement_character_is_text_like_any_other() -> None:
    decoder = Bytes(["\ufffd".encode(), b"a"])
    assert "".join(pieces(TextDecoder(decoder), [1, 2, 1, 1])) == "\ufffda\ufffd\ufffd"


@given(st.lists(st.integers(0, 11), max_size=60))
@settings(max_examples=200, deadline=None)
def test_sentencepiece_spaces_and_byte_fallback_come_out_as_in_the_whole(ids: list[int]) -> None:
    decoder = Real(
        ["<s>", "▁the", "▁", "cat", "▁s", "at", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>", "x", "."],
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
    )
    # Only whole emoji: byte fallback decodes a broken run differently depending on where it ends.
    ids = [j for i in ids for j in ([6, 7, 8, 9] if 6 <= i <= 9 else [i])]
    assert "".join(pieces(TextDecoder(decoder), ids)) == decoder.decode(ids)


def test_the_first_space_depends_on_the_context_before_the_output() -> None:
    decoder = Real(["<s>", "▁is", "▁Paris"], decoders.Metaspace())
    assert "".join(pieces(TextDecoder(decoder), [2])) == "Paris"
    assert "".join(pieces(TextDecoder(decoder, context=[1]), [2])) == " Paris"


@pytest.mark.parametrize("token", [0, 1, 2], ids=["special", "text", "garbage"])
def test_a_token_costs_the_same_at_any_length(token: int) -> None:
    decoder = Bytes([b"word ", b"\x98"])
    stream = TextDecoder(decoder)
    for _ in range(2000):
        stream.put(token)
    assert decoder.decoded < 2000 * 2 * (PATIENCE + 10)


def byte_level() -> Tokenizer:
    """A real byte-level tokenizer: all 256 bytes, a few merged ones, a special token."""
    alphabet = list(byte_alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "Ġthe", "Ċ", "ðŁ", "ĺĢ"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return Tokenizer(backend)


BYTE_LEVEL = byte_level()


@given(st.lists(st.integers(0, 260) | st.sampled_from([256, 258, 259, 260]), max_size=40), st.booleans())
@settings(max_examples=300, deadline=None)
def test_byte_level_vocabularies_are_decoded_without_the_tokenizer_to_the_same_text(
    ids: list[int], skip: bool
) -> None:
    decoder = ByteDecoder(BYTE_LEVEL, skip_special_tokens=skip)
    got = [*(decoder.put(i) for i in ids), decoder.flush()]
    assert "".join(got) == BYTE_LEVEL.decode(ids, skip)
    assert "".join(pieces(TextDecoder(BYTE_LEVEL, skip_special_tokens=skip), ids)) == BYTE_LEVEL.decode(ids, skip)


# -- stop strings --------------------------------------------------------------------------------------------


def feed(stop_filter: StopFilter, *parts: str) -> list[str]:
    return [stop_filter.put(part) for part in parts]


def test_text_without_a_beginning_of_a_stop_string_is_not_held_back() -> None:
    assert feed(StopFilter(["<|end|>"]), "hello", " world") == ["hello", " world"]


def test_exactly_the_beginning_of_a_stop_string_is_held_back() -> None:
    """vllm#3574: neither leaked nor held back by a fixed length."""
    stop_filter = StopFilter(["<|end|>"])
    assert feed(stop_filter, "abc <|e", "x <", "|") == ["abc ", "<|ex ", ""]
    assert stop_filter.flush() == "<|"


def test_a_stop_string_over_several_pieces_leaks_nothing() -> None:
    stop_filter = StopFilter(["STOP"])
    assert feed(stop_filter, "go S", "T", "OP and more", "even more") == ["go ", "", "", ""]
    assert stop_filter.matched == "STOP"
    assert stop_filter.flush() == ""


def test_everything_after_the_stop_string_is_discarded_and_the_stop_string_itself_unless_wanted() -> None:
    """smg PR#2203; TGI#1724: the stop string stayed in the text."""
    assert feed(StopFilter(["\n\n"]), "one\n\ntwo") == ["one"]
    assert feed(StopFilter(["\n\n"], include=True), "one\n\ntwo") == ["one\n\n"]


def test_a_held_back_beginning_that_repeats_itself_is_seen() -> None:
    stop_filter = StopFilter(["aab"])
    assert "".join(feed(stop_filter, *"aaab")) == "a"
    assert stop_filter.matched == "aab"


def test_of_several_stop_strings_the_first_to_be_complete_wins_however_the_text_is_cut() -> None:
    for parts in (["abc"], ["a", "bc"], ["ab", "c"], ["a", "b", "c"]):
        stop_filter = StopFilter(["abc", "b"])
        assert "".join(feed(stop_filter, *parts)) == "a"
        assert stop_filter.matched == "b"
    stop_filter = StopFilter(["c", "bc"])
    assert feed(stop_filter, "abc") == ["a"]
    assert stop_filter.matched == "bc", "two that end together: the longer"


def test_an_empty_stop_string_never_matches() -> None:
    stop_filter = StopFilter([""])
    assert feed(stop_filter, "abc") == ["abc"]
    assert stop_filter.matched is None


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the definition."""
    for end in range(1, len(text) + 1):
        hits = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
@settings(max_examples=400, deadline=None)
def test_stop_strings_match_as_in_the_whole_text_and_hold_back_only_what_they_must(
    parts: list[str], stops: list[str]
) -> None:
    stop_filter = StopFilter(stops)
    out, seen = "", ""
    expected, match = reference("".join(parts), stops)
    for part in parts:
        out += stop_filter.put(part)
        seen += part
        if stop_filter.matched is None:
            held = seen[len(out) :]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
            longer = [seen[i:] for i in range(len(out))]
            assert not any(stop.startswith(tail) and stop != tail for tail in longer for stop in stops)
    assert stop_filter.matched == match
    assert out + stop_filter.flush() == expected


# -- both together -------------------------------------------------------------------------------------------


def run(detokenizer: Detokenizer, ids: list[int]) -> tuple[list[str], str | None]:
    got = []
    for i in ids:
        piece = detokenizer.put(i)
        got.append(piece.text)
        if piece.stop is not None:
            return got, piece.stop
    piece = detokenizer.finish()
    return [*got, piece.text], piece.stop


def test_stop_strings_match_on_text_not_on_tokens() -> None:
    """TGI#1979, TGI#1039: only token-aligned stops were seen."""
    decoder = Bytes([b"one t", b"wo th", b"ree"])
    got, stop = run(Detokenizer(decoder, stop=["two"]), [1, 2, 3])
    assert ("".join(got), stop) == ("one ", "two")


def test_a_held_back_tail_is_flushed_when_the_text_ends_otherwise() -> None:
    decoder = Bytes([b"one ", b"ST"])
    got, stop = run(Detokenizer(decoder, stop=["STOP"]), [1, 2])
    assert got == ["one ", "", "ST"]
    assert stop is None


def test_a_stop_string_may_hold_a_split_character() -> None:
    decoder = Bytes([b"a\xf0\x9f", b"\x98\x80b"])
    got, stop = run(Detokenizer(decoder, stop=["😀"]), [1, 2])
    assert ("".join(got), stop) == ("a", "😀")


def test_stop_strings_are_not_looked_for_in_the_first_min_tokens() -> None:
    decoder = Bytes([b"stop ", b"go "])
    got, stop = run(Detokenizer(decoder, stop=["stop"], min_tokens=2), [1, 2, 2, 1, 2])
    assert ("".join(got), stop) == ("stop go go ", "stop")


@given(
    st.lists(st.integers(1, 6), max_size=20),
    st.lists(st.text("ab😀", min_size=1, max_size=4), max_size=3),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_the_deltas_are_the_decoded_text_up_to_the_stop_string(
    ids: list[int], stops: list[str], include: bool
) -> None:
    decoder = Bytes([b"a", b"b", b"ab", b"\xf0\x9f\x98", b"\x80", b"\xf0\x9f\x98\x80b"])
    got, stop = run(Detokenizer(decoder, stop=stops, include_stop=include), ids)
    expected, match = reference(decoder.decode(ids), stops)
    assert stop == match
    assert "".join(got) == expected + (match if include and match else "")
