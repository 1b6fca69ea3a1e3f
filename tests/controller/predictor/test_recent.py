from __future__ import annotations

import random

import pytest

from controller.predictor.recent import Recent


def test_the_least_recently_used_key_leaves_first() -> None:
    table: Recent[str] = Recent(3)
    for key in (1, 2, 3):
        table.put(key, "x")
    table.use(1)
    table.put(4, "x")
    assert [table.get(key) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]
    assert len(table) == 3


def test_of_many_keys_those_stay_that_are_used() -> None:
    table: Recent[int] = Recent(2_000)
    rng = random.Random(1)
    hot = [rng.getrandbits(64) for _ in range(500)]
    for key in hot:
        table.put(key, key)
    for _ in range(20):
        for key in hot:
            table.use(key)
        for _ in range(500):
            key = rng.getrandbits(64)
            table.put(key, key)
    assert len(table) == 2_000
    assert sum(table.get(key) == key for key in hot) > 490


def test_no_dictionary_in_it_gets_large() -> None:
    table: Recent[int] = Recent(20_000)
    rng = random.Random(1)
    for _ in range(30_000):
        table.put(rng.getrandbits(64), 1)
    assert len(table) == 20_000
    assert max(len(piece) for piece in table._pieces) < 200


@pytest.mark.parametrize("capacity", [10, 100, 40_000])
def test_another_capacity_is_reached_a_few_keys_at_a_time(capacity: int) -> None:
    table: Recent[int] = Recent(5_000)
    rng = random.Random(1)
    keys = [rng.getrandbits(64) for _ in range(5_000)]
    for key in keys:
        table.put(key, 1)
    table.resize(capacity)
    assert len(table) == 5_000
    assert all(table.get(key) for key in keys)
    newest = [rng.getrandbits(64) for _ in range(5_000)]
    for key in newest:
        table.put(key, 1)
    assert len(table) == min(capacity, 10_000)
    assert table.get(newest[-1]) is not None


def test_the_newest_are_told_oldest_first_and_no_more_than_asked_for() -> None:
    small: Recent[int] = Recent(100)
    for key in range(100):
        small.put(key, 1)
    small.use(3)
    assert [key for keys in small.newest(4) for key in keys] == [97, 98, 99, 3]
    large: Recent[int] = Recent(20_000)
    rng = random.Random(2)
    keys = [rng.getrandbits(64) for _ in range(20_000)]
    for key in keys:
        large.put(key, 1)
    told = [key for part in large.newest(2_000) for key in part]
    assert abs(len(told) - 2_000) < 200
    assert set(told) <= set(keys[10_000:])


def test_a_table_for_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        Recent(0)
