"""What meeting the budget was not enough for is trimmed off it, and given back."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from controller.load import Load
from controller.loop import PoolController
from tests.controller.build import controller, observation

QUIET = Load(inflight=8, inflight_calls=1, app_limited=True)


def budget_after(seconds: Iterable[float]) -> float:
    """Return the budget of the law, in parts of its upstream time, after calls that took so long of 9 s."""
    pool: PoolController = controller(law="deadline", mode="merge", low=8, high=8)
    for index, taken in enumerate(seconds):
        now = 100.0 + index
        pool.observe(observation(taken, done=now, batch=8))
        pool.tick(now + 0.1, QUIET)
    budget: float = pool.snapshot(1e6)["law"]["state"]["budget"]
    return budget


def test_three_late_of_a_few_take_five_per_cent_off() -> None:
    assert budget_after([9.5] * 2) == 1.0
    assert budget_after([9.5] * 3) == pytest.approx(0.95)


def test_194_clean_give_two_per_cent_and_never_more_than_a_tenth() -> None:
    assert budget_after([5.0] * 193) == 1.0
    assert budget_after([5.0] * 194) == pytest.approx(1.02)
    assert budget_after([5.0] * 194 * 6) == pytest.approx(1.1)


def test_half_of_it_is_left_however_late_everything_is() -> None:
    assert budget_after([9.5] * 100) == 0.5
