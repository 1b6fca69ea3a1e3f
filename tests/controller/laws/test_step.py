"""The published plain rule, faults included."""

from __future__ import annotations

import pytest

from controller.load import Load
from controller.slo import SLO
from tests.controller.build import controller, observation


@pytest.mark.parametrize(("e2e", "after_one_look"), [(7.3, 6), (7.0, 8), (4.3, 8), (4.1, 10)])
def test_two_fewer_above_1_2x_and_two_more_below_0_7x(e2e: float, after_one_look: int) -> None:
    pool = controller(law="step", slo=SLO(e2e_s=6.0))
    for _ in range(20):
        pool.observe(observation(e2e, done=100.0))
    pool.tick(101.0, Load(app_limited=True))
    assert pool.setpoints.max_batch_size == after_one_look


def test_it_looks_every_five_seconds() -> None:
    pool = controller(law="step", slo=SLO(e2e_s=6.0), size=40)
    for _ in range(20):
        pool.observe(observation(60.0, done=100.0))
    for second in range(11):
        pool.tick(101.0 + second, Load())
    assert pool.setpoints.max_batch_size == 34


def test_it_blames_the_queue_on_the_batch_which_is_its_fault() -> None:
    pool = controller(law="step", slo=SLO(e2e_s=6.0), options={"guards": False})
    for _ in range(20):
        pool.observe(observation(1.0, done=100.0, queue=30.0))
    pool.tick(101.0, Load())
    assert pool.setpoints.max_batch_size == 6
