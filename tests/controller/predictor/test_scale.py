from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.predictor.scale import PRIOR_P50, Levels, Scale, SortedWindow


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=40))
def test_a_window_is_the_newest_values_with_exact_ranks(size: int, values: list[float]) -> None:
    window = SortedWindow(size, values)
    newest = values[-size:]
    assert window.values() == newest
    ordered = sorted(newest)
    assert window.quantile(0.0) == ordered[0]
    assert window.quantile(1.0) == ordered[-1]
    assert window.quantile(0.5) == pytest.approx(
        (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2, abs=1e-3
    )


def test_nan_has_no_place_in_a_window() -> None:
    with pytest.raises(ValueError, match="NaN"):
        SortedWindow(3).add(math.nan)


def test_nothing_seen_gives_the_prior_and_a_new_tenant_gets_its_models_length() -> None:
    scale = Scale()
    assert scale.constants("m", "t")[:3] == (PRIOR_P50, 512.0, 0)
    for _ in range(200):
        scale.observe("m", "a", 1000)
        scale.observe("n", "a", 10)
    assert scale.constants("m", "new").p50 > 800
    assert scale.constants("n", "new").p50 < 60
    assert scale.constants("m", "a").narrow
    assert not scale.constants("m", "new").narrow


def test_scale_is_bounded_in_groups() -> None:
    scale = Scale(capacity=10)
    for index in range(50):
        scale.observe("m", f"tenant {index}", 5)
    assert len(list(scale.pages())) == 1 + 10, "all together, and each group"


def test_scale_survives_as_json() -> None:
    scale, copy = Scale(), Scale()
    for index in range(90):
        scale.observe("m", "t", index)
    copy.restore(json.loads(json.dumps(list(scale.pages()))))
    assert copy.constants("m", "t") == scale.constants("m", "t")


def test_noise_does_not_move_a_level_that_was_well_known_and_a_real_shift_does() -> None:
    rng = random.Random(1)
    steady, shifted = Levels(), Levels()
    for _ in range(256):
        noise = rng.gauss(0, 0.8)
        steady.observe("m", "", noise)
        shifted.observe("m", "", noise + math.log(2))
    assert abs(steady.level("m", "", 5000)) < 0.03
    assert shifted.level("m", "", 5000) == pytest.approx(math.log(2) * 256 / 306, abs=0.15)


def test_the_level_of_an_unknown_model_is_found_from_few_outcomes() -> None:
    rng = random.Random(2)
    levels = Levels()
    for _ in range(50):
        levels.observe("new", "t", math.log(0.5) + rng.gauss(0, 0.3))
    assert levels.level("new", "t", 0) == pytest.approx(math.log(0.5), abs=0.15)
    assert levels.level("other", "t", 0) == 0.0
