"""What is a failure, format by format, and what only looks like one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from proxy.wire.base import Call, Head, WireFormat
from proxy.wire.faults import status_of, unsound
from proxy.wire.judging import first_event, judge_start, judge_tap, judge_whole, misses_end
from proxy.wire.registry import certain, detect
from tests.support.sick import FORMATS, JSON, LINES, SSE, Ask


def understood(ask: Ask) -> tuple[WireFormat, Call]:
    wire, route = detect("POST", ask.path)
    body = json.dumps(ask.body).encode()
    call = wire.parse(route, Head("POST", ask.path, ask.path, [(b"Content-Type", b"application/json")]), body)
    call.certain = certain(wire, ask.path, "auto")
    return wire, call


STREAMS = [ask for ask in FORMATS.values() if ask.streamed]
WHOLE = [ask for ask in FORMATS.values() if not ask.streamed]


@pytest.mark.parametrize("ask", WHOLE, ids=lambda ask: ask.name)
def test_a_whole_answer_is_told_from_the_protocols_own_error(ask: Ask) -> None:
    wire, call = understood(ask)
    assert judge_whole(wire, call, JSON, ask.pieces[0]) is None
    fault = judge_whole(wire, call, JSON, ask.error)
    assert fault is not None
    assert fault.body == ask.error
    assert 500 <= fault.status <= 502
    for broken in (b"", b"  ", ask.pieces[0][:-3]):
        assert judge_whole(wire, call, JSON, broken) is not None


@pytest.mark.parametrize("ask", STREAMS, ids=lambda ask: ask.name)
def test_a_stream_that_begins_with_an_error_is_told_from_one_that_does_not(ask: Ask) -> None:
    wire, call = understood(ask)
    assert judge_start(wire, call, ask.kind, ask.pieces[0]) is None
    assert judge_start(wire, call, ask.kind, b"".join(ask.pieces)) is None
    for event in (ask.event, ask.event.replace(b"\n", b"\r\n"), ask.event + ask.pieces[0]):
        fault = judge_start(wire, call, ask.kind, event)
        assert fault is not None
        assert 500 <= fault.status <= 502


@pytest.mark.parametrize("ask", STREAMS, ids=lambda ask: ask.name)
@pytest.mark.parametrize("size", [1, 3, 64, 10_000])
def test_an_error_later_in_a_stream_is_seen_however_it_is_cut(ask: Ask, size: int) -> None:
    wire, call = understood(ask)
    for pieces, failed in ((ask.pieces, False), ([*ask.pieces[:2], ask.event], True)):
        whole, tap = b"".join(pieces), wire.tap(call, ask.kind)
        for start in range(0, len(whole), size):
            tap.feed(whole[start : start + size])
        assert (judge_tap(wire, call, tap) is not None) is failed


@pytest.mark.parametrize("ask", [ask for ask in STREAMS if ask.marked], ids=lambda ask: ask.name)
def test_an_end_mark_is_missed_only_where_it_was_to_be_expected(ask: Ask) -> None:
    wire, call = understood(ask)

    def misses(pieces: list[bytes], **known: bool) -> bool:
        tap = wire.tap(call, ask.kind)
        tap.feed(b"".join(pieces))
        return misses_end(tap, **{"marked": False, "usual": False, "until_close": False, **known})

    cut = ask.pieces[: max(1, len(ask.pieces) - 2)]
    assert not misses(cut), "nobody has shown that it marks its ends"
    for known in ({"marked": True}, {"usual": True}, {"until_close": True}):
        assert misses(cut, **known)
        assert not misses(ask.pieces, **known)
    foreign = [b"data: x\n\n"] if ask.kind == SSE else [b'{"x":1}\n']
    assert not misses(foreign, usual=True, until_close=True), "it may be another protocol's, which has no mark"


@pytest.mark.parametrize("ask", [ask for ask in STREAMS if ask.marked and ask.kind == SSE], ids=lambda ask: ask.name)
@pytest.mark.parametrize("left_out", [1, 2])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_an_end_mark_counts_though_no_blank_line_follows_it(ask: Ask, left_out: int, line_end: bytes) -> None:
    wire, call = understood(ask)
    whole = b"".join(ask.pieces).rstrip(b"\n").replace(b"\n", line_end) + (line_end if left_out == 1 else b"")
    for size in (len(whole), 1, 7):
        tap, ended = wire.tap(call, ask.kind), wire.tap(call, ask.kind)
        ended.feed(b"".join(ask.pieces))
        for start in range(0, len(whole), size):
            tap.feed(whole[start : start + size])
        tap.over()
        assert not misses_end(tap, marked=True, usual=True, until_close=True)
        assert tap.usage() == ended.usage()
    torn = wire.tap(call, ask.kind)
    torn.feed(whole.rstrip()[:-2])
    torn.over()
    assert misses_end(torn, marked=True, usual=True, until_close=True), "half a mark is none"


def test_a_server_that_never_says_done_but_why_it_stopped_is_complete() -> None:
    ask = FORMATS["openai chat stream"]
    wire, call = understood(ask)
    tap = wire.tap(call, SSE)
    tap.feed(b"".join(ask.pieces[:-1]))
    assert not misses_end(tap, marked=False, usual=True, until_close=True)
    assert misses_end(tap, marked=True, usual=True, until_close=False), "but one that says it must say it each time"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai chat", {"choices": [{"message": {"content": '{"error": {"message": "x"}}'}}]}),
        ("openai chat", {"choices": [{"message": {"content": "x", "error": "x"}}], "error": None}),
        ("openai chat", {"choices": [], "error": "", "object": "chat.completion"}),
        ("openai embeddings", {"data": [], "error": "partial"}),
        ("tfserving", {"predictions": [], "error": "drift detected"}),
        ("kserve", {"outputs": [], "error": "none"}),
        ("tgi", {"error": "this server has a field of its own"}),
        ("tei", {"error": 0.25}),
        ("rerank", {"results": [], "error": "x"}),
        ("ollama", {"message": {"content": "error"}, "done": True, "error": 0}),
    ],
)
def test_an_answer_that_only_speaks_of_errors_is_none(name: str, body: dict[str, Any]) -> None:
    wire, call = understood(FORMATS[name])
    assert judge_whole(wire, call, JSON, json.dumps(body).encode()) is None


def test_a_page_for_people_is_no_answer_of_a_protocol_but_may_be_of_others() -> None:
    page = b"<html><body>Welcome to nginx!</body></html>"
    for name, failure in (("openai chat", True), ("ollama", True), ("tgi", False), ("tei", False)):
        wire, call = understood(FORMATS[name])
        assert (judge_whole(wire, call, "text/html; charset=utf-8", page) is not None) is failure
        assert judge_whole(wire, call, "text/plain", page) is None


@pytest.mark.parametrize("path", ["/embeddings", "/completions", "/score", "/classify"])
def test_at_a_path_that_is_anybodys_only_the_protocols_very_own_shape_is_an_error(path: str) -> None:
    wire, call = understood(replace(FORMATS["openai embeddings"], path=path))
    assert judge_whole(wire, call, JSON, b'{"error": "no face found"}') is None
    assert judge_whole(wire, call, "text/html", b"<p>hi</p>") is None
    assert judge_whole(wire, call, JSON, FORMATS["openai chat"].error) is not None


def test_a_response_that_failed_is_a_failure_and_stays_what_it_is() -> None:
    wire, call = understood(FORMATS["openai responses stream"])
    failed = {"id": "r", "object": "response", "status": "failed", "error": {"code": "rate_limit_exceeded"}}
    fault = judge_whole(wire, call, JSON, json.dumps(failed).encode())
    assert fault is not None
    assert (fault.status, fault.kept) == (429, True)
    fine = {**failed, "status": "completed", "error": None}
    assert judge_whole(wire, call, JSON, json.dumps(fine).encode()) is None


@pytest.mark.parametrize(
    ("document", "status"),
    [
        ({"error": {"code": 429}}, 429),
        ({"error": {"code": "503"}}, 503),
        ({"error": {"message": "x"}, "status": 404}, 404),
        ({"error": {"type": "overloaded_error"}}, 529),
        ({"error": {"type": "invalid_request_error", "code": "model_not_found"}}, 404),
        ({"error": "x", "error_type": "validation"}, 422),
        ({"error": {"code": 200}}, 502),
        ({"error": {"code": True}}, 502),
        ({"error": {"code": 10**400}}, 502),
        ({"error": "x"}, 502),
    ],
)
def test_an_error_amounts_to_the_status_it_names(document: dict[str, Any], status: int) -> None:
    assert status_of(document) == status


@pytest.mark.parametrize(
    ("body", "bad"),
    [(b'{"a":1}\n', False), (b'"text"', False), (b"[1]", False), (b"17", False), (b"null", False), (b'{"a":', True),
     (b"[1,", True), (b"\n", True), ("{}".encode("utf-16-le"), False)],
)  # fmt: skip
def test_only_what_certainly_is_no_json_is_unsound(body: bytes, bad: bool) -> None:
    assert unsound(body) is bad


@pytest.mark.parametrize(
    ("kind", "data", "whole"),
    [(SSE, b"data: x", False), (SSE, b"data: x\n", False), (SSE, b"data: x\n\nda", True), (SSE, b"a\r\n\r\n", True),
     (LINES, b'{"a"', False), (LINES, b'{"a":1}\n{', True)],
)  # fmt: skip
def test_the_first_event_is_there_or_not(kind: str, data: bytes, whole: bool) -> None:
    assert first_event(kind, data) is whole
