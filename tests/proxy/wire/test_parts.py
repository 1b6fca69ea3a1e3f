"""The parts that wire formats are made of: bills, prompts, vectors, tails and lines."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.base import MergeMismatch, Usage
from proxy.wire.embeddings import cut_vectors
from proxy.wire.lines import LineTap
from proxy.wire.prompt import Prompt, estimate, excerpt, read_messages, read_plain
from proxy.wire.sse import KEPT_TAIL, MAX_EVENT, SseTap, event_data, event_name
from proxy.wire.tail import last_object, last_scalar, read_usage
from proxy.wire.usage import apportion, split_usage
from proxy.wire.vectors import load_rows
from tests.proxy.wire.support import cuts

shares = st.lists(st.one_of(st.integers(0, 1000), st.floats(0, 1000)), min_size=1, max_size=20)


class TestBills:
    @given(total=st.integers(0, 10**9), weights=shares)
    @settings(max_examples=200, deadline=None)
    def test_parts_add_up_and_are_within_one_of_the_exact_share(self, total: int, weights: list[float]) -> None:
        parts = apportion(total, weights)
        assert sum(parts) == total
        assert all(part >= 0 for part in parts)
        whole = sum(weights)
        if whole > 0:
            for part, weight in zip(parts, weights, strict=True):
                assert abs(part - total * weight / whole) <= 1 + 1e-6 * total

    def test_nobody_weighing_anything_means_equal_parts(self) -> None:
        assert apportion(7, [0, 0, 0]) == [3, 2, 2]

    @pytest.mark.parametrize(("total", "weights"), [(3, []), (-1, [1])])
    def test_what_cannot_be_divided_is_an_error(self, total: int, weights: list[float]) -> None:
        with pytest.raises(ValueError, match="cannot divide"):
            apportion(total, weights)

    def test_output_follows_output_and_everything_else_input(self) -> None:
        usage = {
            "prompt_tokens": 40,
            "completion_tokens": 10,
            "total_tokens": 50,
            "prompt_tokens_details": {"cached_tokens": 8, "exact": True},
            "cost": 0.5,
            "service_tier": None,
        }
        first, second = split_usage(usage, [3, 1], [1, 4])
        assert first == {
            "prompt_tokens": 30,
            "completion_tokens": 2,
            "total_tokens": 32,
            "prompt_tokens_details": {"cached_tokens": 6, "exact": True},
            "cost": 0.5,
            "service_tier": None,
        }
        assert second["total_tokens"] == 10 + 8

    def test_a_bill_that_is_none_is_copied(self) -> None:
        assert split_usage(None, [1, 1]) == [None, None]
        assert split_usage([3], [1, 1]) == [[3], [3]]
        assert split_usage({"total_tokens": 4}, [1, 1]) == [{"total_tokens": 2}, {"total_tokens": 2}]

    @pytest.mark.parametrize("usage", ["of x", {"note": "x"}, {"prompt_tokens_details": {"of": ["x"]}}])
    def test_words_in_a_bill_are_given_to_nobody(self, usage: Any) -> None:
        with pytest.raises(MergeMismatch):
            split_usage(usage, [1, 1])

    def test_nesting_without_end_is_nobodys(self) -> None:
        usage: Any = 1
        for _ in range(900):
            usage = {"x": usage}
        with pytest.raises(MergeMismatch):
            split_usage(usage, [1, 1])


class TestPrompts:
    @given(
        st.lists(
            st.one_of(
                st.fixed_dictionaries({"content": st.text(max_size=900) | st.just("é" * 1500)}),
                st.fixed_dictionaries({"content": st.none() | st.lists(st.just({"text": "part"}), max_size=2)}),
                st.sampled_from([{}, "content", 7, None, []]),
            ),
            max_size=6,
        )
    )
    @settings(max_examples=200, deadline=None)
    def test_plain_messages_weigh_and_say_what_they_do_when_read_one_by_one(self, messages: list[Any]) -> None:
        prompt = Prompt()
        read_messages(messages, prompt)
        plain = read_plain(messages)
        if plain is not None:
            assert plain == (prompt.tokens, prompt.text)
        all_text = all(type(one) is dict and type(one.get("content")) is str for one in messages)
        assert (plain is not None) == (all_text and messages != [])

    @given(pieces=st.lists(st.text(max_size=900), max_size=12))
    @settings(max_examples=100, deadline=None)
    def test_an_excerpt_is_bounded_and_keeps_both_ends(self, pieces: list[str]) -> None:
        total = sum(map(len, pieces))
        text = excerpt(pieces, total)
        joined = "\n".join(pieces)
        if total <= 2500:
            assert text == joined
        else:
            assert len(text) == 2501
            assert text.startswith(joined[:2000])
            assert text.endswith(joined[-500:])

    def test_tool_results_and_documents_inside_a_message_are_text(self) -> None:
        prompt = Prompt()
        content = [
            {"type": "tool_result", "content": "plain"},
            {"type": "tool_result", "content": [{"type": "text", "text": "nested"}, {"type": "image"}, 4]},
            "bare",
            {"type": "image", "source": {"data": "A" * 100_000}},
        ]
        read_messages([{"role": "user", "content": content}], prompt)
        assert prompt.text == "plain\nnested\nbare"
        assert 600 < prompt.tokens < 700

    def test_tools_count_by_their_definition(self) -> None:
        prompt = Prompt()
        prompt.add_json([{"name": "f", "parameters": {"type": "object"}}] * 100)
        assert prompt.tokens > 1000

    @pytest.mark.parametrize(
        ("item", "tokens"), [("abcd" * 10, 11), ([1, 2, 3], 3), ({"text": "abc"}, 4), (None, 2), ("", 1)]
    )
    def test_estimates_are_cheap_and_never_zero(self, item: Any, tokens: int) -> None:
        assert estimate(item) == tokens


numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4)


class TestVectors:
    @pytest.mark.parametrize("rows", [[0.5, 1.5], ["a"], [{"label": "x"}, []], [[1], 2], [None]])
    def test_rows_that_are_no_lists_are_a_mismatch(self, rows: list[Any]) -> None:
        with pytest.raises(MergeMismatch):
            load_rows(orjson.dumps(rows))

    @pytest.mark.parametrize("rows", [[[1, 2], [3]], [[1.5], []], [[1], ["a"]], [[1], [[2]]]])
    def test_rows_that_are_to_be_alike_are_of_one_length_and_of_numbers(self, rows: list[Any]) -> None:
        with pytest.raises(MergeMismatch):
            load_rows(orjson.dumps(rows), alike=True)
        with pytest.raises(MergeMismatch):
            load_rows(orjson.dumps({"rows": rows}), "rows", alike=True)

    @given(vectors=st.lists(st.one_of(numbers, st.lists(numbers, max_size=2), st.text(max_size=3)), max_size=5))
    @settings(max_examples=100, deadline=None)
    def test_vectors_read_without_reading_them_are_the_same_vectors(self, vectors: list[Any]) -> None:
        body = {"data": [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]}
        for option in (0, orjson.OPT_INDENT_2):
            envelope, inside = cut_vectors(orjson.dumps(body, option=option))
            for result in envelope["data"]:
                if inside and type(result["embedding"]) is int:
                    result["embedding"] = orjson.loads(b"[%b]" % inside[result["embedding"]])
            assert envelope == body

    def test_a_number_in_place_of_a_vector_is_not_taken_for_one_that_was_cut_out(self) -> None:
        body = {"data": [{"index": 0, "embedding": [1.5]}, {"index": 1, "embedding": 0}]}
        assert cut_vectors(orjson.dumps(body)) == (body, [])

    @given(rows=st.lists(st.one_of(numbers, st.lists(numbers, max_size=2)), max_size=5), spread=st.booleans())
    @settings(max_examples=100, deadline=None)
    def test_rows_read_without_reading_them_are_the_same_rows(self, rows: list[Any], spread: bool) -> None:
        option = orjson.OPT_INDENT_2 if spread else 0
        bare = load_rows(orjson.dumps(rows, option=option))
        assert (bare[0], orjson.loads(orjson.dumps(bare[1]))) == ({}, rows)
        envelope, held = load_rows(orjson.dumps({"a": 1, "rows": rows, "z": "]"}, option=option), "rows")
        assert envelope.items() >= {"a": 1, "z": "]"}.items()
        assert orjson.loads(orjson.dumps(held)) == rows

    @pytest.mark.parametrize("rows", [[[{"label": "[1,2]"}]], [["]", "["]], [[], []], [[{"index": 1, "value": 0.5}]]])
    def test_rows_of_anything_else_are_parsed_in_full(self, rows: list[Any]) -> None:
        assert orjson.loads(orjson.dumps(load_rows(orjson.dumps(rows))[1])) == rows

    def test_a_list_of_the_same_name_elsewhere_is_not_taken_for_the_rows(self) -> None:
        body = orjson.dumps({"meta": {"rows": [[9.0]]}, "rows": [[1.0], [2.0]]})
        assert orjson.loads(orjson.dumps(load_rows(body, "rows")[1])) == [[1.0], [2.0]]

    @pytest.mark.parametrize("body", [b"", b"[1", b"{}", b'{"rows": 1}', b"[[1],[2]] x", b'{"rows":[[1]}'])
    def test_anything_else_is_a_mismatch(self, body: bytes) -> None:
        with pytest.raises(MergeMismatch):
            load_rows(body, "rows")
        if not body.startswith(b"{"):
            with pytest.raises(MergeMismatch):
                load_rows(body)


class TestTails:
    def test_the_last_object_of_a_name_is_found_from_the_end(self) -> None:
        data = b'{"usage":{"a":1},"x":{"usage": {"b":{"c":2}} }}'
        assert last_object(data, b"usage") == {"b": {"c": 2}}
        assert last_object(data, b"gone") is None

    def test_text_that_looks_like_a_member_is_not_one(self) -> None:
        data = orjson.dumps({"text": '"usage": {"prompt_tokens": 9}, "finish_reason": "stop"'})
        assert read_usage(data) == Usage()

    @pytest.mark.parametrize("words", [1, 5000])
    @pytest.mark.parametrize("details", [None, {"cached_tokens": 3}])
    def test_small_and_large_answers_are_read_alike(self, words: int, details: dict[str, int] | None) -> None:
        choice = {"message": {"content": "word } " * words}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 4, "completion_tokens": words, "prompt_tokens_details": details}
        data = orjson.dumps({"choices": [choice], "usage": usage, "service_tier": None})
        assert read_usage(data) == Usage(4, words, "stop")

    def test_a_small_answer_that_does_not_parse_is_searched_all_the_same(self) -> None:
        data = b'NaN],"finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":2}}'
        assert read_usage(data) == Usage(4, 2, "length")

    def test_what_is_cut_off_or_odd_is_passed_over(self) -> None:
        assert last_object(b'"usage":{"a":"}"', b"usage") is None
        assert last_object(b'{"usage":{"a":1},"usage":null}', b"usage") == {"a": 1}
        assert last_scalar(b'"n": 1, "n": true', b"n") == 1
        assert last_scalar(b'"n": 1, "n": 1.2.3', b"n") == 1
        assert last_scalar(b'"n": "a\\"b"', b"n") == 'a"b'

    def test_many_false_starts_cost_little(self) -> None:
        assert last_object(b'"usage":{' * 1500, b"usage") is None
        assert last_scalar(b'"n":{' * 1500, b"n") is None


class Collector(SseTap):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[bytes] = []

    def event(self, data: bytes) -> None:
        self.events.append(data)


class LineCollector(LineTap):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[bytes] = []

    def line(self, data: bytes) -> None:
        self.lines.append(data)


def blocks(text: bytes) -> list[bytes]:
    """Cut a whole stream into events the slow and obvious way."""
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    events: list[list[bytes]] = [[]]
    for line in lines[:-1]:
        if line:
            events[-1].append(line)
        elif events[-1]:
            events.append([])
    return [b"\n".join(event) for event in events[:-1] if event]


@given(
    stream=st.lists(
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"a", b"data: b", b":c", b"\xe4\xb8\x96"]), max_size=25
    )
)
@settings(max_examples=300, deadline=None)
def test_events_are_those_the_standard_describes_whatever_the_line_ends(stream: list[bytes]) -> None:
    whole = b"".join(stream)
    for pieces in ([whole], stream, [whole[i : i + 1] for i in range(len(whole))]):
        tap = Collector()
        for piece in pieces:
            tap.feed(piece)
        assert tap.events == blocks(whole)


def test_long_events_are_cut_to_the_same_end_however_they_arrive() -> None:
    for length in (MAX_EVENT, MAX_EVENT + 1, 3 * MAX_EVENT):
        event = bytes(97 + i % 26 for i in range(length))
        wanted = event if length <= MAX_EVENT else event[-KEPT_TAIL:]
        for size in (1021, 16_384, 65_536, 200_000, length + 2):
            events, lines = Collector(), LineCollector()
            for start in range(0, length + 2, size):
                events.feed((event + b"\n\n")[start : start + size])
                lines.feed((event + b"\n\n")[start : start + size])
            assert events.events == [wanted]
            assert lines.lines == [wanted]


def test_lines_are_the_same_however_they_are_cut() -> None:
    stream = '{"a":"世"}\r\n\n{"b":2}\n{"c"'.encode()
    for pieces in cuts(stream):
        tap = LineCollector()
        for piece in pieces:
            tap.feed(piece)
        assert tap.lines == ['{"a":"世"}'.encode(), b'{"b":2}']
        assert not tap.at_boundary()
        assert tap.unfinished() == b'{"c"'


@pytest.mark.parametrize(
    ("event", "data", "name"),
    [
        (b"data: x", b"x", b""),
        (b"data:x", b"x", b""),
        (b"data:  x", b" x", b""),
        (b"data", b"", b""),
        (b": comment", b"", b""),
        (b"event: e\ndata: x\n: c\ndata: y\nid: 3", b"x\ny", b"e"),
        (b"event: a\nevent: b", b"", b"b"),
        (b"databases: x", b"", b""),
    ],
)
def test_fields_of_an_event_are_read_by_the_standard(event: bytes, data: bytes, name: bytes) -> None:
    assert event_data(event) == data
    assert event_name(event) == name
