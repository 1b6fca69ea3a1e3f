from __future__ import annotations

import pytest

from controller.concurrency_model import FirstTokenModel
from controller.load import Load
from controller.slo import SLO
from tests.controller.build import controller, job, observation


def test_prefill_is_told_from_waiting() -> None:
    model = FirstTokenModel()
    for index in range(100):
        prompt = 500 + 10 * (index % 50)
        waited = 2.0 if index % 10 == 0 else 0.01
        model.observe(prompt, 1e-4 * prompt + waited, float(index))
    assert model.prompt_token_s == pytest.approx(1e-4, rel=0.2)
    assert model.wait_s(0.5) < 0.1
    assert model.wait_s(0.99) > 1.0


def test_a_jam_is_forgotten_soon_after_it_ended() -> None:
    model = FirstTokenModel()
    for index in range(40):
        model.observe(100, 5.0, float(index))
    for index in range(40):
        model.observe(100, 0.05, 40.0 + index)
    assert model.wait_s(0.9) < 0.1


def test_prompts_that_were_sent_delay_the_next_one() -> None:
    model = FirstTokenModel()
    for index in range(40):
        model.observe(1000, 0.1, float(index))
    assert model.dispatched(5000, 40.0) == pytest.approx(0.5, rel=0.05)
    assert model.dispatched(5000, 40.0) == pytest.approx(1.0, rel=0.05)
    assert model.ahead_s(40.4) == pytest.approx(0.6, rel=0.1)
    assert model.ahead_s(60.0) == 0.0


def test_the_pool_counts_prompts_ahead_against_ttft() -> None:
    pool = controller(slo=SLO(ttft_s=1.0), size=64)
    for index in range(60):
        pool.observe(observation(3.0, done=float(index), batch=4, first=0.1, tokens=40))
    quiet = Load(inflight=4, inflight_calls=4)
    assert pool.admit(job(60.0, prompt_tokens=100), 60.0, quiet).admitted
