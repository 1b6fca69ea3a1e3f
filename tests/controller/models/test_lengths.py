from __future__ import annotations

import random

import pytest

from controller.models.lengths import LengthRing


def ring(lengths: list[int]) -> LengthRing:
    made = LengthRing()
    for length in lengths:
        made.add(length)
    return made


def test_the_largest_of_several_is_known_without_trying() -> None:
    rng = random.Random(0)
    made = ring([rng.randrange(1, 101) for _ in range(400)])
    # The largest of b uniform lengths on 1..100 is 100 b / (b + 1) on average.
    for count in (1, 4, 16):
        assert made.mean_largest(count) == pytest.approx(100 * count / (count + 1), rel=0.12)


def test_old_lengths_are_forgotten() -> None:
    made = ring([1000] * 400 + [10] * 400)
    assert made.quantile(0.99) == 10
    assert len(made) == 400


def test_equal_lengths_do_not_vary() -> None:
    assert not ring([100] * 50).varies()
    assert ring([10, 100] * 50).varies()


def test_an_empty_ring_says_nothing() -> None:
    assert LengthRing().quantile(0.9) == 0.0
    assert not LengthRing().varies()
