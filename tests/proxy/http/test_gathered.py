"""Bodies that come in pieces are put together as they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.http.gathered import Gathered


@given(st.lists(st.sampled_from([0, 1, 1000, 65_536, 400_000, 1_048_575, 1_048_576, 3_000_000]), max_size=6))
def test_what_is_joined_is_what_came(sizes: list[int]) -> None:
    gathered, whole = Gathered(), b""
    for number, size in enumerate(sizes):
        piece = bytes([number]) * size
        gathered.add(piece)
        whole += piece
        assert gathered.size == len(whole)
    assert gathered.joined() == whole
    assert gathered.joined() == whole, "and once more, where that is asked for"
