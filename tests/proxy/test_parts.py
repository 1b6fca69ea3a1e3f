"""The head of a part is that of the whole, less what speaks of the whole."""

from __future__ import annotations

import pytest

from proxy.parts import PartHeads
from proxy.wire.base import Reply

WHOLE = b"Server: x\r\ncontent-type: application/json; charset=utf-8\r\nX-One: 1\r\nx-one: 2\r\n"
JSON = Reply(200, b"{}")


def test_fields_keep_their_order_spelling_and_number() -> None:
    assert PartHeads(WHOLE).lines(JSON) == WHOLE


def test_a_type_of_another_kind_takes_the_place_of_the_whole_answers() -> None:
    binary = Reply(200, b"..", "application/octet-stream", ((b"Inference-Header-Content-Length", b"2"),))
    assert PartHeads(b"A: 1\r\nContent-Type: application/json\r\nB: 2\r\n").lines(binary) == (
        b"A: 1\r\nContent-Type: application/octet-stream\r\nB: 2\r\nInference-Header-Content-Length: 2\r\n"
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
