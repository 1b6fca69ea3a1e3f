from __future__ import annotations

import pytest

from controller.load import Load
from controller.models.concurrency_model import FirstTokenModel
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
        tokens = 1000 if index % 2 else 5000
        model.observe(tokens, 1e-4 * tokens, float(index))
    assert model.dispatched(5000, 40.0) == pytest.approx(0.5, rel=0.05)
    assert model.dispatched(5000, 40.0) == pytest.approx(1.0, rel=0.05)
    assert model.ahead_s(40.4) == pytest.approx(0.6, rel=0.1)
    assert model.ahead_s(60.0) == 0.0


def test_prompts_that_never_differed_teach_no_slope_and_delay_nobody() -> None:
    model = FirstTokenModel()
    for index in range(40):
        model.observe(1000, 0.1, float(index))
    assert model.dispatched(50_000, 40.0) == 0.0
    assert model.quantile_s(50_000, 0.9) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("estimated", [20, 80, 320])
def test_the_clock_does_not_run_away_from_a_server_whose_first_token_takes_what_it_takes(estimated: int) -> None:
    """It added up prompts that were read long ago: 14.9 s ahead of nobody after 20 s of six a second."""
    model = FirstTokenModel()
    ends: list[tuple[float, float]] = []
    for index in range(120):
        now = index / 6.0
        while ends and ends[0][0] <= now:
            done, expected = ends.pop(0)
            model.observe(80, 0.3, done, expected)
        ends.append((now + 0.3, model.dispatched(estimated, now)))
    assert model.ahead_s(20.0) < 0.1


def test_each_upstream_reads_its_own_prompts() -> None:
    model = FirstTokenModel()
    for index in range(40):
        tokens = 1000 if index % 2 else 5000
        model.observe(tokens, 1e-4 * tokens, float(index))
    for _ in range(4):
        model.dispatched(5000, 40.0, "a")
    model.dispatched(1000, 40.0, "b")
    assert model.ahead_s(40.0) == pytest.approx(0.1, rel=0.1), "the next one goes where least is ahead"


def test_the_pool_counts_prompts_ahead_against_ttft() -> None:
    pool = controller(slo=SLO(ttft_s=1.0), size=64)
    for index in range(60):
        pool.observe(observation(3.0, done=float(index), batch=4, first=0.1, tokens=40))
    quiet = Load(inflight=4, inflight_calls=4)
    assert pool.admit(job(60.0, prompt_tokens=100), 60.0, quiet).admitted
