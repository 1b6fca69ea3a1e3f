"""What is read from OpenAI's answers as they pass by."""

from __future__ import annotations

import gzip
import random
from typing import Any

import orjson
import pytest

from proxy.wire.base import Call, Tap, Usage
from proxy.wire.openai import OpenAI
from proxy.wire.sse import KEPT_TAIL, MAX_EVENT
from tests.proxy.wire.support import cuts, parse, seen

WIRE = OpenAI()
SSE = "text/event-stream; charset=utf-8"


def call(path: str = "/v1/chat/completions") -> Call:
    return parse(path, {"model": "m", "messages": [], "stream": True})


def tap(path: str = "/v1/chat/completions", content_type: str = SSE) -> Tap:
    return WIRE.tap(call(path), content_type)


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + orjson.dumps({"id": "c", "choices": choices, **more}) + b"\n\n"


CHAT_STREAM = b"".join(
    [
        chunk({"role": "assistant", "content": ""}),
        b": ping\n\n",
        chunk({"content": "Grüße"}),
        chunk({"content": "世界 🌍"}),
        chunk({"reasoning_content": "hm"}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}),
        chunk({"content": ' "content":"" '}),
        chunk({}, "stop"),
        chunk(None, usage={"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}),
        b"data: [DONE]\n\n",
    ]
)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_a_stream_reads_the_same_however_it_is_cut(line_end: bytes) -> None:
    stream = CHAT_STREAM.replace(b"\n", line_end)
    for pieces in cuts(stream):
        usage, tokens, finished, boundary = seen(tap(), pieces)
        assert usage == Usage(12, 5, "stop")
        assert (tokens, finished) == (5, True)
        assert boundary or line_end == b"\r", "after a lone CR an LF might still come"


def test_mixed_line_ends_and_spare_blank_lines_read_the_same() -> None:
    rng = random.Random(3)
    stream = b"".join(
        line + rng.choice([b"\n", b"\r\n"])
        for line in (b"\n\n\n" + CHAT_STREAM.replace(b"\n\n", b"\n\n\n")).split(b"\n")
    )
    for pieces in cuts(stream):
        assert seen(tap(), pieces)[:3] == (Usage(12, 5, "stop"), 5, True)


def test_without_reported_usage_token_bearing_events_are_counted() -> None:
    stream = tap()
    for text in ("a", "b", "c"):
        stream.feed(chunk({"content": text}))
    assert stream.tokens_seen == 3
    assert stream.usage() == Usage(None, 3, None)
    assert not stream.finished()


def test_other_spellings_of_the_same_json_count_the_same() -> None:
    stream = tap()
    stream.feed(b'data:{"choices": [{"delta": {"content": "x"}, "finish_reason": null}], "usage": null}\n\n')
    stream.feed(b'data: {"choices": [{"delta": {"content": ""}, "finish_reason": "length"}], "usage": null}\n\n')
    stream.feed(b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}}\n\n')
    stream.feed(b'data: {"choices": [], "usage": null}\n\ndata:   [DONE]  \n\n')
    assert seen(stream, []) == (Usage(1, 9, "length"), 1, True, True)


def test_data_over_several_lines_is_one_event() -> None:
    event = b'event: x\nid: 4\ndata: {"choices":\ndata:  [{"delta": {"content":\ndata: "x"}}]}\n\n'
    for pieces in cuts(event):
        assert seen(tap(), pieces)[1] == 1


def test_completions_are_counted_by_their_text() -> None:
    stream = tap("/v1/completions")
    stream.feed(b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n')
    stream.feed(b'data: {"choices":[{"index":0,"text":"","finish_reason":"stop"}]}\n\n')
    assert seen(stream, []) == (Usage(None, 1, "stop"), 1, False, True)


def test_boundaries_are_between_events_only() -> None:
    stream = tap()
    assert stream.at_boundary()
    for at in range(1, len(CHAT_STREAM)):
        stream.feed(CHAT_STREAM[at - 1 : at])
        ends_blank = CHAT_STREAM[:at].endswith(b"\n\n")
        assert stream.at_boundary() == ends_blank, CHAT_STREAM[:at][-10:]


def test_an_event_the_stream_ends_in_the_middle_of_does_not_count() -> None:
    stream = tap()
    stream.feed(chunk({"content": "a"}) + b"data: [DO")
    assert seen(stream, [])[1:] == (1, False, False)
    stream.feed(b"NE]\n")
    assert not stream.finished()


def test_a_huge_event_is_read_from_its_end_in_bounded_memory() -> None:
    usage = {"input_tokens": 3, "output_tokens": 4}
    body = orjson.dumps({"type": "response.completed", "response": {"output": ["x" * 3 * MAX_EVENT], "usage": usage}})
    event = b"event: response.completed\ndata: " + body + b"\n\n"
    for size in (1000, 4096, 65_536, 70_001, len(event)):
        stream: Any = tap("/v1/responses")
        for start in range(0, len(event), size):
            stream.feed(event[start : start + size])
            assert len(stream._partial) <= MAX_EVENT + KEPT_TAIL + size
        assert seen(stream, []) == (Usage(3, 4, None), 0, True, True)


def test_a_responses_stream_ends_with_its_terminal_event() -> None:
    events = [
        b'event: response.created\ndata: {"type":"response.created"}\n\n',
        b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n',
        b'event: response.output_text.delta\ndata: {"delta":"b"}\n\n',
    ]
    done = b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":7,"output_tokens":2}}}\n\n'
    for pieces in cuts(b"".join(events)):
        assert seen(tap("/v1/responses"), pieces) == (Usage(None, 2, None), 2, False, True)
    for pieces in cuts(b"".join([*events, done])):
        assert seen(tap("/v1/responses"), pieces) == (Usage(7, 2, None), 2, True, True)


def test_a_responses_stream_without_event_names_is_read_by_the_types_inside() -> None:
    stream = tap("/v1/responses")
    stream.feed(b'data: {"type": "response.output_text.delta", "delta": "a"}\n\n')
    stream.feed(b'data: {"type":"response.failed","response":{"status":"failed"}}\n\n')
    assert seen(stream, []) == (Usage(None, 1, None), 1, True, True)


@pytest.mark.parametrize(
    "data",
    [b"data: {oops\n\n", b"data: []\n\n", b'data: {"choices":[3,null]}\n\n', b':"content":"x"\n\n', b"\x00\xff\n\n"],
)
def test_garbage_counts_nothing_and_breaks_nothing(data: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/completions"):
        assert seen(tap(path), [data])[:2] == (Usage(), 0)


def test_a_compressed_stream_counts_nothing() -> None:
    packed = gzip.compress(CHAT_STREAM)
    assert seen(tap(), [packed[i : i + 7] for i in range(0, len(packed), 7)])[:3] == (Usage(), 0, False)


def test_an_event_cut_off_by_a_blank_line_anywhere_breaks_nothing() -> None:
    event = chunk({"content": "ab"}, "stop", usage={"prompt_tokens": 1})
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/completions"):
        for at in range(len(event)):
            seen(tap(path), [event[:at] + b"\n\n" + event[at:]])


class TestWholeAnswers:
    answer = orjson.dumps(
        {
            "id": "x",
            "choices": [{"message": {"content": 'a "usage": {"prompt_tokens": 9} b'}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 1}},
        }
    )

    def test_usage_is_read_from_the_end_however_the_answer_is_cut(self) -> None:
        for pieces in cuts(self.answer):
            assert seen(tap(content_type="application/json"), pieces)[0] == Usage(5, 6, "length")

    def test_a_large_answer_is_kept_only_at_its_end(self) -> None:
        body = b'{"data":[' + b"0.1," * 500_000 + b'1],"usage":{"prompt_tokens":8,"total_tokens":8}}'
        reader: Any = tap(content_type="application/json")
        for start in range(0, len(body), 10_000):
            reader.feed(body[start : start + 10_000])
            assert reader._size <= 4 * KEPT_TAIL + 10_000
        assert reader.usage() == Usage(8, None, None)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{}",
            b'{"usage":null}',
            b'{"usage":{"prompt_tokens":',
            b'{"usage":[1]}',
            b'{"usage":{"prompt_tokens":-1}}',
            b'{"usage":{"prompt_tokens":true}}',
            gzip.compress(answer),
            b'"usage":{' * 5000,
        ],
    )
    def test_an_answer_that_says_nothing_is_not_guessed_at(self, body: bytes) -> None:
        assert seen(tap(content_type="application/json"), [body])[0] == Usage()
