"""Which times count against the setpoints, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from controller.load import Load
from controller.measure.evidence import Evidence, budgets, weigh
from controller.measure.samples import Sample
from controller.observation import Result
from controller.slo import SLO
from tests.controller.build import controller, observation


def sample(service: float, **more: Any) -> Sample:
    made = Sample.of(observation(service, **more))
    assert made is not None
    return made


def judged(slo: SLO, *samples: Sample, load: Load | None = None, **more: Any) -> Evidence:
    return weigh(samples, budgets(slo, "gate"), load or Load(), 100.0, since=0.0, **more)


def test_concurrency_answers_to_the_pace_and_admission_to_the_first_token() -> None:
    both = SLO(ttft_s=1.0, tpot_s=0.05)
    assert [limit.latency for limit in budgets(both, "gate")] == ["tpot"]
    slow_start = sample(10.0, first=8.0, tokens=100)
    slow_pace = sample(10.0, first=0.1, tokens=100)
    assert judged(both, slow_start).late == 0
    assert judged(both, slow_pace).late == 1


def test_a_slow_pace_shrinks_a_gate_and_a_slow_first_token_does_not() -> None:
    for first, shrinks in ((0.1, True), (9.0, False)):
        pool = controller(slo=SLO(ttft_s=1.0, tpot_s=0.05), size=16, options={"guards": False})
        for second in range(60):
            done = 100.0 + second
            generation = pool.setpoints.generation
            pool.observe(observation(10.0, done=done, first=first, tokens=100, batch=16, generation=generation))
            pool.tick(done, Load(queued=9, inflight=16, inflight_calls=16))
        assert (pool.setpoints.max_batch_size < 16) is shrinks, first


def test_a_long_stream_is_not_late_for_a_promised_first_token() -> None:
    only_first = SLO(ttft_s=1.0)
    assert judged(only_first, sample(90.0, first=0.2, tokens=3000)).late == 0
    assert judged(only_first, sample(1.0, first=0.8, tokens=20)).late == 1, "half of ttft is the upstream's"


def test_time_in_the_queue_is_nobodys_fault_upstream() -> None:
    promised = SLO(e2e_s=4.0)
    assert judged(promised, sample(2.0, queue=60.0)).late == 0
    assert budgets(SLO(queue_s=1.0), "gate") == ()
    assert judged(SLO(queue_s=1.0), sample(50.0)) == Evidence(0, 0, 0, 0, 0.0, 0.0, 0.0, "")


def test_a_timeout_is_late_whatever_it_took() -> None:
    found = judged(SLO(e2e_s=4.0), sample(0.1, result=Result.TIMEOUT))
    assert (found.n, found.late, found.binding) == (1, 1, "e2e")


def test_who_gave_up_counts_only_when_late_already() -> None:
    promised = SLO(e2e_s=4.0)
    assert judged(promised, sample(1.0, result=Result.CANCELLED)).n == 0
    assert judged(promised, sample(9.0, result=Result.CANCELLED)).late == 1


def test_a_small_batch_in_time_says_nothing_about_a_large_one() -> None:
    promised = SLO(e2e_s=4.0)
    small, large, slow = sample(1.0, batch=2), sample(1.0, batch=16), sample(9.0, batch=2)
    found = judged(promised, small, large, slow, least_batch=12.0)
    assert (found.n, found.late) == (2, 1)


def test_what_runs_longer_than_its_budget_is_late_before_it_returns() -> None:
    found = judged(SLO(e2e_s=4.0), load=Load(inflight=2, inflight_calls=2, running=(99.0, 90.0)))
    assert (found.n, found.late, found.overdue) == (1, 1, 1)


def test_a_long_answer_is_no_stall_while_others_come_back() -> None:
    paced = SLO(tpot_s=0.05)
    load = Load(inflight=1, inflight_calls=1, running=(10.0,))
    assert judged(paced, load=load, longest_s=20.0, last_done=99.0).overdue == 0
    assert judged(paced, load=load, longest_s=20.0, last_done=70.0).overdue == 1


@pytest.mark.parametrize(("tokens", "n"), [((8, 100, 100), 2), ((8, 8, 100), 3)])
def test_answers_of_a_few_tokens_have_no_pace_unless_most_are_like_that(tokens: tuple[int, ...], n: int) -> None:
    assert judged(SLO(tpot_s=0.05), *[sample(1.0, first=0.1, tokens=count) for count in tokens]).n == n
