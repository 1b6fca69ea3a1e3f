"""Exploration stays next to what the model would do, and stops where it does harm."""

from __future__ import annotations

from controller.laws.bandit import BanditLaw
from controller.load import Load
from controller.slo import SLO
from tests.controller.build import controller, observation


def test_arms_stay_within_their_reach_of_the_models_choice() -> None:
    pool = controller(law="bandit", options={"epoch_s": 5.0}, size=25, high=25, slo=SLO(e2e_s=10.0))
    tried = set()
    for second in range(400):
        now = 100.0 + second
        size = pool.setpoints.max_batch_size
        tried.add(size)
        for index in range(4):
            pool.observe(observation(8.6, done=now + index / 10, batch=size, generation=pool.setpoints.generation))
        pool.tick(now + 0.5, Load(queued=30, inflight=size, inflight_calls=1))
    assert len(tried) > 1, "it tries something"
    assert min(tried) >= 25 - 3
    assert max(tried) <= 25


def test_the_upper_arm_waits_until_the_cap_holds_work_back() -> None:
    pool = controller(law="bandit", options={"epoch_s": 5.0}, size=25, high=64, slo=SLO(e2e_s=10.0))
    for second in range(200):
        now = 100.0 + second
        size = pool.setpoints.max_batch_size
        assert size <= 25
        pool.observe(observation(2.0, done=now, batch=size, generation=pool.setpoints.generation))
        pool.tick(now + 0.5, Load(queued=0, inflight=3, inflight_calls=1, app_limited=True))


def test_nothing_is_tried_without_a_promise() -> None:
    pool = controller(law="bandit", options={"epoch_s": 1.0}, size=25, slo=SLO())
    for second in range(60):
        pool.observe(observation(2.0, done=100.0 + second, batch=25))
        pool.tick(100.0 + second, Load(queued=30, inflight=25, inflight_calls=1))
    assert pool.setpoints.max_batch_size == 25
    assert BanditLaw().state()["center"] is None
