from __future__ import annotations

import math

import pytest

from controller.predictor import track


def followed(values: list[float]) -> bytes:
    packed = None
    for value in values:
        packed = track.add(packed, value)
    assert packed is not None
    return packed


def test_a_track_follows_change_and_forgets_outliers() -> None:
    changed = [1.0] * 100 + [4.0] * track.RING
    assert track.read(followed(changed)).centre == pytest.approx(4.0)
    assert track.read(followed([*changed, 400.0])).centre == pytest.approx(4.0)


def test_the_newest_outcomes_are_kept_in_order_and_all_are_counted() -> None:
    packed = followed([float(value) for value in range(40)])
    assert track.outcomes(packed) == tuple(range(24, 40))
    assert track.read(packed).n == 40


def test_few_outcomes_are_worth_their_mean() -> None:
    found = track.read(followed([1.0, 2.0, 6.0]))
    assert (found.mean, found.centre, found.above) == (3.0, 3.0, pytest.approx(2.2))


@pytest.mark.parametrize("kept", [[], [1.0] * (track.RING + 1), [math.nan], [math.inf]])
def test_what_is_no_track_is_refused(kept: list[float]) -> None:
    with pytest.raises(ValueError, match="a track of"):
        track.pack(len(kept), 1.0, kept)
