"""The head of a part is that of the whole, less what speaks of the whole."""

from __future__ import annotations

import pytest

from proxy.dispatch.parts import PartHeads
from proxy.wire.base import Reply

WHOLE = b"Server: x\r\ncontent-type: application/json; charset=utf-8\r\nVary: 1\r\nvary: 2\r\n"
JSON = Reply(200, b"{}")


def test_fields_keep_their_order_spelling_and_number() -> None:
    assert PartHeads(WHOLE).lines(JSON) == WHOLE


def test_a_type_of_another_kind_takes_the_place_of_the_whole_answers() -> None:
    binary = Reply(200, b"..", "application/octet-stream", ((b"Inference-Header-Content-Length", b"2"),))
    assert PartHeads(b"Server: 1\r\nContent-Type: application/json\r\nVia: 2\r\n").lines(binary) == (
        b"Server: 1\r\nContent-Type: application/octet-stream\r\nVia: 2\r\nInference-Header-Content-Length: 2\r\n"
    )


def test_a_part_has_a_type_where_the_whole_had_none() -> None:
    assert b"Content-Type: application/json\r\n" in PartHeads(b"Server: x\r\n").lines(JSON)


@pytest.mark.parametrize(
    "line",
    [
        b"ETag: 1",
        b"Set-Cookie: a=b",
        b"X-Request-Id: 7",
        b"Content-Encoding: identity",
        b"Content-Range: bytes 0-1/2",
        b"ce-id: 7",
        b"ce-requestid: 7",
        b"Warning: 299 - of one",
        b"X-Inference-Time: of one",
        b"X-Whatever: of one",
    ],
)
def test_what_speaks_of_the_whole_is_left_out(line: bytes) -> None:
    assert PartHeads(WHOLE + line + b"\r\n").lines(JSON) == WHOLE


def test_a_field_of_the_parts_own_replaces_the_wholes() -> None:
    lengths = [
        Reply(200, b"..", "application/octet-stream", ((b"Inference-Header-Content-Length", n),))
        for n in (b"1", b"22")
    ]
    heads = PartHeads(b"Inference-Header-Content-Length: 999\r\nContent-Type: application/octet-stream\r\n")
    for reply, length in zip(lengths, (b"1", b"22"), strict=True):
        assert heads.lines(reply) == (
            b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: " + length + b"\r\n"
        )


def test_replies_of_different_kinds_do_not_mix_up_one_another() -> None:
    heads = PartHeads(WHOLE)
    text = Reply(200, b"x", "text/plain")
    assert [heads.lines(reply).count(b"text/plain") for reply in (JSON, text, JSON)] == [0, 1, 0]


def test_how_long_it_took_it_took_for_everybody() -> None:
    times = b"X-Inference-Time: 12\r\nopenai-processing-ms: 8.5\r\n"
    assert PartHeads(WHOLE + times).lines(JSON) == WHOLE + times


def test_a_field_that_nobody_knows_is_everybodys_when_it_was_the_same_before() -> None:
    model, one, other = b"X-Model: 3\r\n", b"X-Call: 1\r\n", b"X-Call: 2\r\n"
    first = PartHeads(WHOLE + model + one)
    assert first.lines(JSON) == WHOLE
    assert first.unknown == [model, one]
    second = PartHeads(WHOLE + model + other, first.unknown)
    assert second.lines(JSON) == WHOLE + model
    assert second.unknown == [model, other]
