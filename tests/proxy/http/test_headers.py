"""One pass over the fields, in each direction."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.http.fields import connection_options, lines_of
from proxy.http.reply import head_bytes
from proxy.http.request_fields import RequestFields
from proxy.http.response_fields import ResponseFields

TOKEN = st.text("abcXYZ-", min_size=1, max_size=12).map(str.encode)
VALUE = st.binary(max_size=20).filter(lambda v: not set(v) & set(b"\r\n\0"))
FIELDS = st.lists(st.tuples(TOKEN, VALUE), max_size=20)


@given(FIELDS)
def test_end_to_end_fields_pass_in_order_with_spelling_and_duplicates(fields: list[tuple[bytes, bytes]]) -> None:
    assert RequestFields(fields).forwarded == fields
    assert ResponseFields(fields).fields == fields


def test_names_in_connection_are_dropped_wherever_they_stand() -> None:
    fields = [(b"X-A", b"1"), (b"Connection", b"keep-alive, x-a,X-B"), (b"x-b", b"2"), (b"X-C", b"3")]
    assert RequestFields(fields).forwarded == [(b"X-C", b"3")]
    assert ResponseFields(fields).fields == [(b"X-C", b"3")]


def test_several_connection_fields_add_up() -> None:
    fields = [(b"Connection", b"x-a"), (b"Connection", b"x-b"), (b"X-A", b"1"), (b"X-B", b"2")]
    assert RequestFields(fields).forwarded == []
    assert connection_options(b" close ,, X-A") == {b"close", b"x-a"}


def test_credentials_named_in_connection_are_gone() -> None:
    fields = RequestFields([(b"Connection", b"authorization"), (b"Authorization", b"Bearer x")])
    assert fields.get(b"authorization") is None


def test_next_hop_appends_to_what_earlier_hops_wrote() -> None:
    fields = RequestFields(
        [(b"Host", b"a"), (b"X-Forwarded-For", b"1"), (b"X-Forwarded-For", b"2"), (b"Via", b"1.0 x")]
    )
    lines = fields.next_hop("9", "https")
    assert b"X-Forwarded-For: 1, 2, 9\r\n" in lines
    assert b"Via: 1.0 x, 1.1 trimtab\r\n" in lines
    assert b"X-Forwarded-Proto: https\r\n" in lines
    assert b"Host" not in lines.replace(b"X-Forwarded-Host", b"")


def test_numbers_from_callers_are_positive_and_finite_or_nothing() -> None:
    for text, number in (
        (b"5", 5.0),
        (b" 2.5 ", 2.5),
        (b"-1", None),
        (b"0", None),
        (b"nan", None),
        (b"inf", None),
        (b"x", None),
        (b"0.0", None),
        (b"999999999999.5", 999999999999.5),
        (b"1000000000000", None),
        (b"1_0", None),
        (b"1e3", None),
        (b"+5", None),
        (b"5.", None),
        (b".5", None),
        (b"0x10", None),
        (b"5 5", None),
        (b"5\n", None),
        (b"", None),
        ("٥".encode(), None),
        (b"\xb2", None),
    ):
        assert RequestFields([(b"x-trimtab-timeout-ms", text)]).positive_number(b"x-trimtab-timeout-ms") == number


def test_response_facts_are_read() -> None:
    headers = [
        (b"Content-Length", b"12"),
        (b"Content-Type", b"Text/Event-Stream; charset=x"),
        (b"X-Request-Id", b"u"),
    ]
    fields = ResponseFields(headers)
    assert fields.length_of(headers) == 12
    assert fields.is_event_stream
    assert fields.has_request_id
    assert not fields.chunked
    assert ResponseFields([(b"Transfer-Encoding", b" Chunked ")]).chunked
    assert ResponseFields([(b"Content-Encoding", b"gzip")]).encoded


@given(FIELDS, st.integers(0, 10**9), st.booleans())
def test_a_head_has_one_framing(fields: list[tuple[bytes, bytes]], length: int, chunked: bool) -> None:
    lines = ResponseFields(fields).lines(fields)
    head = head_bytes(200, b"OK", lines, length=None if chunked else length, chunked=chunked)
    split = head.lower().split(b"\r\n")
    assert sum(line.startswith((b"content-length:", b"transfer-encoding:")) for line in split) == 1
    assert head.endswith(b"\r\n\r\n")
    assert head.count(b"\r\n\r\n") == 1


@given(FIELDS, st.integers(0, 20), st.integers(0, 20), st.booleans())
def test_answers_repeat_but_for_length_and_date(
    fields: list[tuple[bytes, bytes]], length_at: int, date_at: int, with_length: bool
) -> None:
    def answer(length: bytes, date: bytes) -> list[tuple[bytes, bytes]]:
        made = list(fields)
        made.insert(date_at, (b"Date", date))
        if with_length:
            made.insert(length_at, (b"content-length", length))
        return made

    first, second = answer(b"1", b"Mon"), answer(b"22", b"Tue")
    known = ResponseFields(first)
    assert known.same_as(second)
    assert known.length_of(second) == (22 if with_length else None)
    assert known.lines(second) == lines_of([f for f in second if f[0] != b"content-length"])
    assert not known.same_as([*second, (b"X", b"y")])
    for index, (name, value) in enumerate(second):
        if name not in (b"Date", b"content-length"):
            assert not known.same_as([*second[:index], (name, value + b"!"), *second[index + 1 :]])


@given(FIELDS, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 20))
def test_fields_are_the_same_again_whatever_the_length(
    fields: list[tuple[bytes, bytes]], first: int, second: int, at: int
) -> None:
    one = (*fields[:at], (b"Content-Length", b"%d" % first), *fields[at:])
    other = (*fields[:at], (b"Content-Length", b"%d" % second), *fields[at:])
    parsed = RequestFields(one)
    assert parsed.same_as(other)
    assert parsed.length_of(other) == second
    assert not parsed.same_as((*other, (b"X", b"y")))
    assert not parsed.same_as(tuple(fields))
    if fields:
        changed = [(name, value + b"!") for name, value in fields]
        assert not parsed.same_as((*changed[:at], (b"Content-Length", b"%d" % first), *changed[at:]))


def test_callers_share_a_call_only_with_equal_credentials_and_fields() -> None:
    def identity(*fields: tuple[bytes, bytes]) -> tuple[object, ...]:
        return RequestFields([(b"Host", b"a"), *fields]).identity()

    assert identity((b"User-Agent", b"x"), (b"Accept", b"*/*")) == identity((b"user-agent", b"y"))
    assert identity((b"X-Stainless-Lang", b"x")) == identity()
    assert identity((b"Authorization", b"1")) != identity((b"Authorization", b"2"))
    assert identity((b"OpenAI-Project", b"1")) != identity()
    assert identity((b"Cookie", b"1")) != identity((b"Cookie", b"2"))
