"""Retry-After in all the forms that RFC 9110 knows, and in those that it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.upstream.retry_after import retry_after_s

NOW = 784_111_777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"0", 0.0),
        (b"120", 120.0),
        (b" 20 ", 20.0),
        (b"0.5", 0.5),
        (b"Sun, 06 Nov 1994 08:50:07 GMT", 30.0),
        (b"Sunday, 06-Nov-94 08:50:07 GMT", 30.0),
        (b"Sun Nov  6 08:50:07 1994", 30.0),
        (b"Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        (b"", None),
        (b"soon", None),
        (b"-5", None),
        (b"nan", None),
        (b"inf", None),
        (b"1e9", None),
        (b"99999999999999999999", None),
        (b"Sun, 99 Nov 1994 08:50:07 GMT", None),
        (b"\xff\xfe", None),
        (b"Sun, " * 100, None),
        (None, None),
    ],
)
def test_seconds_and_all_three_dates(value: bytes | None, seconds: float | None) -> None:
    assert retry_after_s(value, NOW) == seconds


def test_two_digits_of_a_year_are_never_more_than_fifty_years_ahead() -> None:
    assert retry_after_s(b"Friday, 01-Jan-60 00:00:00 GMT", NOW) == 0.0


def test_clocks_need_not_agree() -> None:
    value, said = b"Sun, 06 Nov 1994 08:50:07 GMT", b"Sun, 06 Nov 1994 08:49:57 GMT"
    assert retry_after_s(value, NOW + 86_400.0, said) == 10.0
    assert retry_after_s(value, NOW, b"no date") == 30.0


@given(st.binary(max_size=80))
def test_whatever_comes_it_is_a_number_of_seconds_or_nothing(value: bytes) -> None:
    found = retry_after_s(value, NOW)
    assert found is None or found >= 0.0
