"""The comparison behind docs/compatibility.md: it finds what differs, and nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.compat.compare import Verdict, close, compare, compare_merged, compare_values, masked, shape
from benchmarks.compat.exchange import VOLATILE, Answer, Ask

ASK = Ask("one", "POST", "/v1/x")
BODY = b'{"id": "a-1", "created": 17, "text": "Paris"}'
HEADERS = (("server", "uvicorn"), ("content-type", "application/json"), ("content-length", str(len(BODY))))
DIRECT = Answer(200, "OK", HEADERS, BODY)


def judged(through: Answer, direct: Answer = DIRECT, again: Answer | None = None) -> Verdict:
    return compare(ASK, direct, through, direct if again is None else again)


def test_the_same_answer_with_new_identifiers_is_the_same() -> None:
    through = replace(DIRECT, body=b'{"id": "b-22", "created": 18, "text": "Paris"}')
    through = replace(through, headers=(*HEADERS[:2], ("Content-Length", str(len(through.body)))))
    verdict = judged(through)
    assert verdict.same
    assert not verdict.varies


def test_framing_and_what_is_for_one_hop_may_differ() -> None:
    hop = (("Date", "now"), ("Connection", "close"), ("Transfer-Encoding", "chunked"))
    assert judged(replace(DIRECT, headers=(*HEADERS[:2], *hop))).same


def test_what_trimtab_adds_is_told_and_is_no_difference() -> None:
    verdict = judged(replace(DIRECT, headers=(*HEADERS, ("X-Request-Id", "r"), ("X-Trimtab-Queue-Ms", "0.1"))))
    assert verdict.same
    assert verdict.adds == ["x-request-id", "x-trimtab-queue-ms"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"status": 201}, "status"),
        ({"reason": "Fine"}, "reason"),
        ({"whole": False}, "whole"),
        ({"body": BODY.replace(b"Paris", b"Rome!")}, "body"),
        ({"body": BODY.replace(b'": "', b'":"')}, "length"),
        ({"headers": HEADERS[1:]}, "header names"),
        ({"headers": (HEADERS[1], HEADERS[0], HEADERS[2])}, "header names"),
        ({"headers": (("Server", "uvicorn"), *HEADERS[1:])}, "header names"),
        ({"headers": (*HEADERS, ("x-more", "1"))}, "header names"),
        ({"headers": (("server", "other"), *HEADERS[1:])}, "header server"),
        ({"headers": (*HEADERS[:2], ("content-length", "9"))}, "length"),
    ],
)
def test_every_change_is_found(change: dict[str, Any], told: str) -> None:
    verdict = judged(replace(DIRECT, **change))
    assert any(difference.startswith(told) for difference in verdict.differences), verdict


def test_key_order_and_spacing_count() -> None:
    other = replace(DIRECT, body=json.dumps({"created": 17, "id": "a-1", "text": "Paris"}).encode())
    assert not judged(other).same


def test_what_the_server_does_not_say_twice_the_same_is_not_blamed_on_trimtab() -> None:
    again = replace(DIRECT, body=BODY.replace(b"Paris", b"Lyon!"))
    through = replace(DIRECT, body=BODY.replace(b"Paris", b"Nice!"))
    verdict = judged(through, again=again)
    assert verdict.same
    assert verdict.varies == ["body"]


def test_where_the_server_varies_the_shape_still_counts() -> None:
    again = replace(DIRECT, body=BODY.replace(b"Paris", b"Lyon!"))
    through = replace(DIRECT, body=BODY.replace(b'"Paris"', b"12345"), headers=HEADERS[:2])
    assert judged(through, again=again).differences[0].startswith("shape of the body")


def test_a_refusal_of_our_own_is_counted_apart_only_where_the_server_refuses_too() -> None:
    ours = Answer(400, "Bad Request", (("X-Trimtab-Reason", "bad_request"),), b"{}")
    for status in (422, 500):
        theirs = replace(DIRECT, status=status)
        assert judged(ours, theirs).refused
        assert judged(ours, theirs).same
    assert not judged(ours, DIRECT).refused
    assert not judged(ours, DIRECT).same


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"id":"x\\"y","n":1}', b'{"id":"~","n":1}'),
        (b'data: {"created": -1.5e3}\n\n', b'data: {"created": "~"}\n\n'),
        (b'{"my_id":"x","idle":"y"}', b'{"my_id":"x","idle":"y"}'),
        (b'{"text":"say \\"id\\": 7"}', b'{"text":"say \\"id\\": 7"}'),
        (b'{"id":{"id":"x"}}', b'{"id":{"id":"~"}}'),
    ],
)
def test_only_the_values_of_volatile_members_are_blanked(body: bytes, expected: bytes) -> None:
    assert masked(body, VOLATILE) == expected


def test_nothing_is_blanked_where_nothing_is_volatile() -> None:
    assert masked(BODY, ()) == BODY


def test_how_often_a_shape_repeats_does_not_matter_but_the_sequence_does() -> None:
    def stream(*texts: str) -> bytes:
        return b"".join(b"data: %b\n\n" % json.dumps({"t": text}).encode() for text in texts)

    end = b"data: [DONE]\n\n"
    assert shape(stream("a", "b", "c") + end) == shape(stream("abc") + end)
    assert shape(stream("a") + end) != shape(stream("a"))
    assert shape(b"event: x\n" + stream("a")) != shape(stream("a"))
    assert shape(b'{"a":1}\n{"a":2}\n') == shape(b'{"a":3}\n{"a":4}\n{"a":5}\n')
    assert shape(b'{"a":[1,2]}') == shape(b'{"a":[3.5]}') != shape(b'{"a":["3"]}')


@pytest.mark.parametrize(
    ("one", "other", "tolerance", "told"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.00001, 2.0]}, 1e-4, 0),
        ({"a": [1.0, 2.0]}, {"a": [1.001, 2.0]}, 1e-4, 1),
        ({"a": 1}, {"b": 1}, 1e-4, 1),
        ([1, 2], [1], 1e-4, 1),
        ("x", "y", 1.0, 1),
        (True, 1.0, 1.0, 0),
        (None, 0, 1.0, 1),
        (1.0, 1.0000001, 0.0, 1),
    ],
)
def test_documents_are_close_within_the_tolerance(one: Any, other: Any, tolerance: float, told: int) -> None:
    assert len(close(one, other, tolerance=tolerance)) == told


def test_a_part_of_a_batch_may_differ_in_the_last_digits_and_in_nothing_else() -> None:
    ask = replace(ASK, tolerance=1e-4)
    direct = replace(DIRECT, body=b'{"id":"a","v":[0.5]}', headers=HEADERS[:2])
    through = replace(direct, body=b'{"v": [0.50001], "id": "b"}')
    assert compare_merged(ask, direct, through, direct).same
    named = replace(through, headers=(*through.headers, ("X-Request-Id", "ours")))
    assert compare_merged(
        ask, replace(direct, headers=(*direct.headers, ("x-request-id", "theirs"))), named, direct
    ).same
    assert not compare_merged(ask, direct, replace(through, body=b'{"id":"b","v":[0.6]}'), direct).same
    assert not compare_merged(ask, direct, replace(through, status=502), direct).same
    assert not compare_merged(ask, direct, replace(through, headers=HEADERS[1:2]), direct).same
    assert not compare_merged(ask, direct, replace(through, body=b"no JSON"), direct).same


def test_results_of_a_client_are_judged_like_bodies() -> None:
    same = compare_values(
        "chat", {"id": "1", "text": "x"}, {"id": "2", "text": "x"}, {"id": "3", "text": "x"}, VOLATILE
    )
    assert same.same
    other = compare_values("chat", {"text": "x"}, {"text": "y"}, {"text": "x"}, VOLATILE)
    assert not other.same
    sampled = compare_values("chat", {"text": "x"}, {"text": "y"}, {"text": "z"}, VOLATILE)
    assert (sampled.same, sampled.varies) == (True, ["result"])
    lost = compare_values("chat", {"text": "x"}, {"error": "y"}, {"text": "z"}, VOLATILE)
    assert not lost.same


def test_a_connection_that_the_server_breaks_direct_is_not_held_against_an_answer_through_trimtab() -> None:
    broken = {"error": "APIConnectionError", "status": None, "body": "Connection error."}
    answered = {"error": "InternalServerError", "status": 500, "body": "Internal Server Error"}
    assert compare_values("bad", broken, answered, broken, frozenset()).varies == ["connection"]
    assert compare_values("bad", broken, answered, answered, frozenset()).same
    assert not compare_values("bad", answered, broken, answered, frozenset()).same
