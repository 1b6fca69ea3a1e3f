from __future__ import annotations

import math
import random

import pytest

from controller.models.batch_model import BatchModel


def pace(size: int) -> float:
    return 0.008 + 0.0012 * size


def trained(sizes: tuple[int, ...], equal: bool = False) -> BatchModel:
    model, rng = BatchModel(), random.Random(3)
    for index in range(300):
        size = sizes[index % len(sizes)]
        lengths = [100 if equal else rng.choice((10, 50, 100, 300)) for _ in range(size)]
        seconds = (0.05 + pace(size) * max(lengths)) * math.exp(rng.gauss(0.0, 0.03))
        model.observe(size, seconds, float(index), lengths)
    return model


def test_where_answers_differ_the_longest_of_a_batch_is_what_counts() -> None:
    model = trained((1, 2, 3, 4))
    assert model.by_length
    # Sixteen answers almost always hold one of the longest; that size was never tried.
    assert model.predict(16) == pytest.approx(0.05 + pace(16) * 297, rel=0.2)


def test_where_answers_are_alike_only_the_size_counts() -> None:
    model = trained((1, 2, 3, 4), equal=True)
    assert not model.by_length
    assert model.predict(4) == pytest.approx(0.05 + pace(4) * 100, rel=0.1)


def test_what_is_left_of_a_call_is_an_average_over_the_lengths_still_possible() -> None:
    model = trained((1, 2, 3, 4))
    early, late = model.remaining_s(1, 0.05), model.remaining_s(1, 2.0)
    assert early < model.quantile_s(1)
    assert 0.3 < late < 1.2


def test_without_lengths_it_still_predicts() -> None:
    model = BatchModel()
    for index in range(50):
        model.observe(1 + index % 8, 1.0 + 0.1 * (1 + index % 8), float(index), [])
    assert model.predict(8) == pytest.approx(1.8, rel=0.1)
