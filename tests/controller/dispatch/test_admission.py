from __future__ import annotations

import pytest

from controller.dispatch.admission import Admission, Forecast, forecast_merge
from controller.load import Load
from controller.models.batch_model import BatchModel
from controller.slo import SLO
from controller.verdict import Choice
from tests.controller.build import controller, job, observation

SLO_E2E = SLO(e2e_s=5.0)
BUSY = Load(queued=3, inflight=8, inflight_calls=1, running=(99.0,), running_batches=(8,))


def late_by(seconds: float) -> Forecast:
    return Forecast(1.0, 5.0 + seconds, 5.0 + seconds)


def warm() -> Admission:
    admission = Admission()
    admission.admitted(99.9)
    return admission


def test_an_idle_pool_never_refuses() -> None:
    verdict = warm().judge(job(100.0), 100.0, Load(), SLO_E2E, late_by(1000.0), 1.0)
    assert (verdict.admitted, verdict.reason) == (True, "idle")


def test_what_cannot_make_it_is_refused_with_a_time_to_come_back() -> None:
    verdict = warm().judge(job(100.0), 100.0, BUSY, SLO_E2E, late_by(3.0), 1.0)
    assert (verdict.admitted, verdict.reason) == (False, "slo_infeasible")
    assert verdict.predicted_s == pytest.approx(8.0)
    assert verdict.retry_after_s == pytest.approx(3.0)


def test_what_can_make_it_is_admitted() -> None:
    assert warm().judge(job(100.0), 100.0, BUSY, SLO_E2E, late_by(-0.1), 1.0).admitted


def test_without_a_promise_nothing_is_refused_by_prediction() -> None:
    verdict = warm().judge(job(100.0), 100.0, BUSY, SLO(), late_by(1000.0), 1.0)
    assert (verdict.admitted, verdict.reason) == (True, "no_slo")


def test_a_callers_own_deadline_is_a_promise_too() -> None:
    assert not warm().judge(job(100.0, deadline=102.0), 100.0, BUSY, SLO(), late_by(0.0), 1.0).admitted
    assert not warm().judge(job(100.0, deadline=102.0), 100.0, BUSY, SLO(e2e_s=60.0), late_by(0.0), 1.0).admitted


def test_time_already_spent_counts() -> None:
    assert not warm().judge(job(99.0), 100.0, BUSY, SLO_E2E, late_by(-0.5), 1.0).admitted


def test_a_probe_goes_through_when_everything_has_been_refused_for_a_while() -> None:
    admission = warm()
    verdicts = [
        admission.judge(job(now), now, BUSY, SLO_E2E, late_by(100.0), 2.0) for now in (100.0, 101.0, 102.0, 103.0)
    ]
    assert [verdict.reason for verdict in verdicts] == ["slo_infeasible", "slo_infeasible", "probe", "slo_infeasible"]


def test_the_forecast_is_made_at_the_size_the_newcomer_would_meet_not_at_the_cap() -> None:
    model = BatchModel()
    for size in (1, 2, 4, 8, 16, 32) * 10:
        model.observe(size, 0.5 + 0.1 * size, 0.0, [])
    idle_but_one = forecast_merge(model, 32, 100.0, Load(inflight=1, inflight_calls=1, running=(99.9,)))
    assert idle_but_one.done_s < model.quantile_s(32)
    behind_a_batch = forecast_merge(model, 8, 100.0, Load(queued=8, inflight=1, inflight_calls=1, running=(99.9,)))
    assert behind_a_batch.done_s > idle_but_one.done_s + 0.9 * model.quantile_s(8)


def test_a_queue_target_bounds_the_wait() -> None:
    slo = SLO(queue_s=0.5)
    assert not warm().judge(job(100.0), 100.0, BUSY, slo, Forecast(1.0, 1.0, 1.0), 1.0).admitted
    assert warm().judge(job(100.0), 100.0, BUSY, slo, Forecast(0.4, 9.0, 9.0), 1.0).admitted


def test_gate_admission_answers_to_queue_plus_prefill() -> None:
    pool = controller(slo=SLO(ttft_s=1.0), size=4)
    for index in range(40):
        pool.observe(observation(4.0, done=float(index), batch=4, first=0.2, tokens=40))
    free = Load(queued=0, inflight=3, inflight_calls=3)
    full = Load(queued=8, inflight=4, inflight_calls=4)
    assert pool.admit(job(40.0), 40.0, free).admitted
    refused = pool.admit(job(40.1), 40.1, full)
    assert not refused.admitted
    assert refused.retry_after_s >= 5.0
    assert pool.retry_after_s(40.1, full) == pytest.approx(9.0, rel=0.1)


def test_admission_can_be_switched_off() -> None:
    pool = controller(slo=SLO(e2e_s=0.001), mode="merge", options={"admission": False})
    for index in range(40):
        pool.observe(observation(4.0, done=4.0 * index, batch=8))
    load = Load(queued=100, inflight=8, inflight_calls=1, running=(159.0,), running_batches=(8,))
    assert pool.admit(job(160.0), 160.0, load).reason == "no_admission"
    assert pool.choose([job(0.0)] * 20, 160.0, load) == Choice(8, ())
