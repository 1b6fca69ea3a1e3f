"""What may go past the parsers because it is plain: heads that come again, and whole chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.http.heads import RepeatedHead
from proxy.upstream.chunks import single_chunk, whole_chunks

HEAD = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nAccept: */*\r\n\r\n"


def repeated(head: bytes = HEAD) -> RepeatedHead:
    found = RepeatedHead.of(head)
    assert found is not None
    return found


def test_the_same_head_with_its_whole_body_is_known() -> None:
    assert repeated().match(HEAD + b"hello") == len(HEAD)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_only_the_length_may_differ(body: bytes) -> None:
    head = HEAD.replace(b"5", b"%d" % len(body))
    assert repeated().match(head + body) == len(head)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"hell",
        HEAD + b"hello!",
        HEAD.replace(b": 5", b": +5") + b"hello",
        HEAD.replace(b": 5", b": 5 ") + b"hello",
        HEAD.replace(b": 5", b": ") + b"hello",
        HEAD.replace(b": 5", b": 5, 5") + b"hello",
        HEAD.replace(b": 5", b": 5\r\nTransfer-Encoding: chunked") + b"hello",
        HEAD.replace(b": 5", b": 5\r\nContent-Length: 5") + b"hello",
        HEAD.replace(b": 5", b": 0x5") + b"hello",
        HEAD.replace(b"Host: a", b"Host: b") + b"hello",
        HEAD.replace(b"POST", b"PUT ") + b"hello",
        b"",
        HEAD[:20],
    ],
)
def test_anything_else_is_for_the_parser(data: bytes) -> None:
    assert repeated().match(data) == 0


@pytest.mark.parametrize("value", [b"5, 5", b"+5", b"", b"5 ", b"0x5", b"5\r\ncontent-length: 5", b"\t5"])
def test_a_head_whose_length_is_not_plain_is_never_known(value: bytes) -> None:
    assert RepeatedHead.of(HEAD.replace(b"5", value)) is None


def test_a_head_without_a_body_is_known_alone() -> None:
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    assert not repeated(head).counted
    assert repeated(head).match(head) == len(head)
    assert repeated(head).match(head + b"x") == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.binary(max_size=12))
def test_whole_chunks_are_found_and_what_follows_is_left(pieces: list[bytes], rest: bytes) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    end, found = whole_chunks(data + rest)
    assert found[: len(pieces)] == pieces
    assert end >= len(data)
    assert b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in found) == (data + rest)[:end]


@pytest.mark.parametrize(
    "data",
    [
        b"0\r\n\r\n",
        b"5\r\nhell",
        b"5\r\nhello",
        b"5\r\nhello\r",
        b"5\r\nhelloXX",
        b"05\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b"A\r\nhellohello\r\n",
        b"1_0\r\n0123456789abcdef\r\n",
        b"-5\r\nhello\r\n",
        b"5\nhello\r\n",
        b"\r\nhello\r\n",
        b"",
    ],
)
def test_other_chunks_are_for_the_parser(data: bytes) -> None:
    assert whole_chunks(data) == (0, [])
    assert not single_chunk(data)


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.binary(min_size=1, max_size=12))
def test_a_single_chunk_is_all_there_is(piece: bytes, rest: bytes) -> None:
    data = b"%x\r\n%b\r\n" % (len(piece), piece)
    assert single_chunk(data) == piece
    assert whole_chunks(data) == (len(data), [piece])
    assert not single_chunk(data + rest)
    assert not single_chunk(data[:-1])
