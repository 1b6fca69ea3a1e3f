"""Cuts that changed nothing are undone; those that helped stay, whichever law made them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.slo import SLO
from tests.controller.build import controller, observation

LAWS = ["aimd", "deadline", "gradient"]
PACE = SLO(tpot_s=0.1)


def play(
    pool: PoolController,
    pace_s: Callable[[float, int], float],
    seconds: int,
    *,
    start: float = 100.0,
    seed: int = 0,
    each: Callable[[float, int], None] | None = None,
) -> None:
    """Keep a pool's places full for so long, before a server whose pace is a function of time and company."""
    rng = random.Random(seed)
    for second in range(seconds):
        now = start + second
        size = pool.setpoints.max_batch_size
        for index in range(8):
            pace = pace_s(now, size) * rng.uniform(0.97, 1.03)
            done = now + index / 10
            pool.observe(
                observation(
                    0.1 + 40 * pace,
                    done=done,
                    batch=size,
                    generation=pool.setpoints.generation,
                    first=0.1,
                    tokens=41,
                )
            )
        pool.tick(now + 0.9, Load(queued=9, inflight=size, inflight_calls=size))
        if each is not None:
            each(now, pool.setpoints.max_batch_size)


def rules(pool: PoolController) -> list[str]:
    return [entry.rule.split(".")[1] for entry in pool.decisions.since(0)]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("pace", [0.102, 0.12, 0.3])
def test_cuts_that_changed_nothing_are_undone_and_said_so(law: str, pace: float) -> None:
    pool = controller(law=law, size=16, slo=PACE)
    sizes: list[int] = []
    play(pool, lambda now, size: pace, 120, each=lambda now, size: sizes.append(size))
    assert "in_vain" in rules(pool)
    undone = next(entry for entry in pool.decisions.since(0) if entry.rule.endswith("in_vain"))
    assert undone.new["max_batch_size"] == 16
    assert "changed nothing" in undone.text
    assert "no size keeps it now" in undone.text
    assert sizes.count(16) > 60, "most of the time it is where it was"
    assert min(sizes) >= 4


@pytest.mark.parametrize("law", LAWS)
def test_cuts_that_helped_stay(law: str) -> None:
    """16 at once take 130 ms a token, 10 keep 100."""
    pool = controller(law=law, size=16, slo=PACE)
    sizes: list[int] = []
    play(pool, lambda now, size: 0.05 + 0.005 * size, 60, each=lambda now, size: sizes.append(size))
    assert "in_vain" not in rules(pool)
    assert max(sizes[-20:]) <= 11


@pytest.mark.parametrize("law", LAWS)
def test_when_the_server_is_well_again_the_cap_is_there_within_ten_seconds(law: str) -> None:
    pool = controller(law=law, size=16, slo=PACE)
    play(pool, lambda now, size: 0.12, 35)
    play(pool, lambda now, size: 0.06, 10, start=135.0)
    assert pool.setpoints.max_batch_size >= 16


@pytest.mark.parametrize("law", LAWS)
def test_what_was_late_half_a_minute_ago_does_not_hold_the_cap_down(law: str) -> None:
    pool = controller(law=law, size=1, high=64, slo=PACE)
    play(pool, lambda now, size: 0.3, 60)
    play(pool, lambda now, size: 0.03, 60, start=160.0)
    assert pool.setpoints.max_batch_size >= 16


def test_the_floor_is_left_upwards_though_all_are_late() -> None:
    """It was cut to the floor, for that helped a little; then nothing helps any more."""
    pool = controller(law="aimd", size=16, slo=PACE)
    play(pool, lambda now, size: 0.11 + 0.01 * size, 60)
    assert pool.setpoints.max_batch_size <= 2
    play(pool, lambda now, size: 0.2, 60, start=160.0)
    assert "probe" in rules(pool)


def test_an_operator_who_moves_the_size_ends_the_row() -> None:
    pool = controller(law="aimd", size=16, slo=PACE)
    play(pool, lambda now, size: 0.12, 5)
    pool.pin({"max_batch_size": 40}, 105.0, "admin:test")
    play(pool, lambda now, size: 0.12, 10, start=106.0)
    pool.unpin(None, 116.0, "admin:test")
    play(pool, lambda now, size: 0.12, 20, start=117.0)
    assert all(entry.new["max_batch_size"] <= 40 for entry in pool.decisions.since(0) if "in_vain" in entry.rule)
    assert pool.setpoints.max_batch_size > 16


def test_a_law_that_was_told_so_goes_its_own_way() -> None:
    pool = controller(law="aimd", size=16, slo=PACE, options={"guards": False})
    play(pool, lambda now, size: 0.12, 60)
    assert pool.setpoints.max_batch_size == 1
