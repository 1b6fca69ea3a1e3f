"""Usage is read wherever it stands: at the end, or before a long list."""

from __future__ import annotations

import pytest

from proxy.wire.tail import BEGUN, KEPT, TailTap

LISTED = (
    b'"data":[' + b",".join(b'{"index":%d,"embedding":[%b]}' % (n, b"0.125," * 200 + b"1") for n in range(40)) + b"]"
)
USAGE = b'"usage":{"prompt_tokens":777,"total_tokens":777}'


@pytest.mark.parametrize("step", [1, 100, 4096, 10_000, 1 << 20])
@pytest.mark.parametrize("body", [b'{"model":"m",%b,%b}' % (USAGE, LISTED), b'{"model":"m",%b,%b}' % (LISTED, USAGE)])
def test_usage_at_either_end_of_a_long_answer(body: bytes, step: int) -> None:
    assert len(body) > KEPT + BEGUN
    tap = TailTap()
    for at in range(0, len(body), step):
        tap.feed(body[at : at + step])
    assert tap.usage().prompt_tokens == 777
    assert len(b"".join(tap._pieces)) <= 5 * KEPT + step


def test_the_end_counts_where_both_have_some() -> None:
    tap = TailTap()
    tap.feed(b'{%b,%b,"usage":{"prompt_tokens":3,"completion_tokens":4}}' % (USAGE, LISTED))
    assert (tap.usage().prompt_tokens, tap.usage().output_tokens) == (3, 4)


def test_neither_end() -> None:
    tap = TailTap()
    tap.feed(b'{"model":"m",%b}' % LISTED)
    assert tap.usage().prompt_tokens is None
