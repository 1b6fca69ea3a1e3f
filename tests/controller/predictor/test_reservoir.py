from __future__ import annotations

import gc
import random

import pytest

from controller.predictor.reservoir import Reservoir, Row


def add(reservoir: Reservoir, tokens: float, model: str = "m", at: float = 0.0) -> None:
    reservoir.add([1.0], tokens, censored=False, model=model, tenant="t", at=at)


def test_size_is_bounded_in_each_stratum_and_in_all() -> None:
    reservoir = Reservoir(per_stratum=10, capacity=25)
    for index in range(400):
        add(reservoir, 2 ** (index % 6))
    assert len(reservoir) == 25 == sum(len(stratum.rows) for stratum in reservoir.snapshot())
    assert max(len(stratum.rows) for stratum in reservoir.snapshot()) <= 10
    assert sum(reservoir.groups.values()) == 25


def test_rare_lengths_are_kept_and_weights_restore_the_true_shares() -> None:
    rng = random.Random(7)
    reservoir = Reservoir(per_stratum=200)
    for _ in range(20_000):
        add(reservoir, 1000 if rng.random() < 0.03 else 10)
    strata = {Row.read(stratum.rows[0]).tokens: stratum for stratum in reservoir.snapshot()}
    long, short = (len(strata[tokens].rows) * strata[tokens].weight for tokens in (1000, 10))
    assert len(strata[1000].rows) == 200
    assert long / (long + short) == pytest.approx(0.03, abs=0.01)


def test_after_a_drift_a_models_old_rows_are_marked() -> None:
    reservoir = Reservoir()
    for _ in range(5):
        add(reservoir, 10, "a")
        add(reservoir, 10, "b")
    reservoir.fade("a")
    faded = {stratum.model: stratum.faded for stratum in reservoir.snapshot()}
    assert faded == {"a": 10, "b": 0}


def test_a_row_is_read_as_it_was_written() -> None:
    row = Row(7, 1.5, 240.0, True, b"12345678" * 3, "tenant ß \udc80")
    assert Row.read(row.pack()) == row


def test_what_is_kept_gives_the_collector_nothing_to_walk() -> None:
    reservoir = Reservoir()
    add(reservoir, 10)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1_000):
        add(reservoir, 10)
    assert len(gc.get_objects()) - before < 50
