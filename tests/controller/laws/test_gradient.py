"""Gradient2, and the target that holds it."""

from __future__ import annotations

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.slo import SLO
from tests.controller.build import controller, observation

BUSY = Load(queued=30, inflight=8, inflight_calls=1)
IDLE = Load(queued=0, inflight=1, inflight_calls=1, app_limited=True)


def run(pool: PoolController, seconds: float, ticks: int, load: Load, start: float = 100.0) -> int:
    for tick in range(ticks):
        now = start + tick
        for _ in range(4):
            pool.observe(observation(seconds, done=now, generation=pool.setpoints.generation))
        pool.tick(now + 0.5, load)
    return pool.setpoints.max_batch_size


def gradient(size: int, slo_s: float = 100.0) -> PoolController:
    return controller(law="gradient", size=size, slo=SLO(e2e_s=slo_s))


def test_while_service_is_as_usual_a_fifth_of_the_queue_is_added_each_second() -> None:
    pool = gradient(20)
    assert run(pool, 1.0, 1, BUSY) == 20, "0.8 is kept until it makes one"
    assert run(pool, 1.0, 4, BUSY, 101.0) == pytest.approx(20 + 5 * 0.8, abs=1)


def test_service_that_takes_twice_as_long_takes_it_down() -> None:
    pool = gradient(40)
    run(pool, 1.0, 3, IDLE)
    # g = 1.5 * 1 / 2 = 0.75 to begin with: L <- 0.8 L + 0.2 (0.75 L + 4)
    assert run(pool, 2.0, 1, IDLE, 103.0) == int(0.8 * 40 + 0.2 * (0.75 * 40 + 4))


def test_up_to_the_tolerance_nothing_falls() -> None:
    pool = gradient(40)
    run(pool, 1.0, 3, IDLE)
    assert run(pool, 1.4, 10, IDLE, 103.0) == 40


def test_a_slow_normal_is_no_excuse_for_missing_the_target() -> None:
    pool = gradient(40, slo_s=2.0)
    assert run(pool, 1.9, 20, BUSY) < 20
