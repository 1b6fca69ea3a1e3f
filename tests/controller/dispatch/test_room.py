"""Nothing is refused from an empty queue while there was time to spare, nor by a prediction that proved wrong."""

from __future__ import annotations

import pytest

from controller.dispatch.admission import Admission, Forecast
from controller.dispatch.room import Room, TrackRecord, used_share
from controller.load import Load
from controller.observation import Result
from controller.slo import SLO
from tests.controller.build import controller, job, observation

PROMISED = SLO(ttft_s=1.0)
NOBODY_WAITS = Load(inflight=8, inflight_calls=8)
SOME_WAIT = Load(queued=1, inflight=8, inflight_calls=8)
LATE = Forecast(0.0, 5.0, 9.0)


def judge(admission: Admission, now: float, load: Load = NOBODY_WAITS, awaited_s: float = 0.0) -> str:
    return admission.judge(job(now), now, load, PROMISED, LATE, 1.0, awaited_s).reason


def used(admission: Admission, *shares: float) -> Admission:
    for share in shares:
        admission.room.add(share)
    admission.admitted(100.0)
    return admission


def test_while_nothing_waits_and_half_of_the_time_was_left_nothing_is_refused() -> None:
    admission = used(Admission(), *[0.4] * 100)
    assert [judge(admission, 100.0 + index / 10) for index in range(50)] == ["room"] * 50


def test_while_somebody_waits_the_prediction_decides() -> None:
    assert judge(used(Admission(), *[0.4] * 100), 100.0, SOME_WAIT) == "slo_infeasible"


def test_a_few_that_took_longer_are_nothing_that_admission_could_have_foreseen() -> None:
    assert judge(used(Admission(), *[0.4] * 95, *[3.0] * 5), 100.0) == "room"
    tight = used(Admission(), *[0.4] * 80, *[0.9] * 20)
    assert [judge(tight, 100.0), judge(tight, 100.1)] == ["trial", "slo_infeasible"]


def test_only_the_last_hundred_count() -> None:
    assert judge(used(Admission(), *[2.0] * 100, *[0.1] * 100), 100.0) == "room"


def test_a_first_token_that_is_awaited_for_half_of_its_time_ends_the_room() -> None:
    admission = used(Admission(), *[0.1] * 100)
    assert judge(admission, 100.0, awaited_s=0.5) == "room"
    judge(admission, 100.1, awaited_s=0.6)
    assert judge(admission, 100.2, awaited_s=0.6) == "slo_infeasible"


def test_a_prediction_that_was_wrong_lets_everybody_in_until_it_is_right() -> None:
    admission = used(Admission(), *[0.9] * 100)
    for index in range(5):
        now = 100.0 + 3.0 * index
        assert judge(admission, now) == "trial"
        admission.record.ended(now, now + 1.0, True)
    assert [judge(admission, 115.0 + index / 10) for index in range(20)] == ["disproved"] * 20
    for index in range(20):
        admission.record.ended(115.0 + index / 10, 118.0, False)
    admission.admitted(118.0)
    assert judge(admission, 118.0) == "slo_infeasible"


def test_trials_of_a_prediction_that_is_right_become_rare() -> None:
    record, now, tried = TrackRecord(), 0.0, 0
    while now < 300.0:
        if record.due(now):
            tried += 1
            record.admitted(now, now, trial=True)
            record.ended(now, now + 0.5, False)
        now += 0.5
    assert 8 <= tried <= 16


def test_who_is_predicted_late_and_goes_away_proves_nothing() -> None:
    record = TrackRecord()
    for index in range(20):
        record.admitted(float(index), float(index))
        record.ended(float(index), index + 1.0, None)
    assert not record.disproved(20.0)
    assert record.as_dict()["predicted_late"] == 0


@pytest.mark.parametrize(
    ("slo", "told", "share"),
    [
        (SLO(e2e_s=8.0), False, 0.5),
        (SLO(ttft_s=2.0), False, 0.75),
        (SLO(ttft_s=2.0), True, -1.0),
        (SLO(queue_s=1.0), False, 1.0),
        (SLO(tpot_s=0.001), False, -1.0),
        (SLO(e2e_s=8.0, ttft_s=2.0), False, 0.75),
    ],
)
def test_the_share_is_of_the_promise_that_came_closest(slo: SLO, told: bool, share: float) -> None:
    obs = observation(3.0, done=100.0, queue=1.0, first=0.5, tokens=30)
    assert used_share(obs, slo, first_told=told) == pytest.approx(share)
    assert used_share(observation(3.0, result=Result.TIMEOUT), slo, first_told=told) == float("inf")


def test_room_counts_what_leaves_it() -> None:
    room = Room()
    for index in range(1000):
        room.add(0.9 if 300 <= index < 320 else 0.1)
        assert room.ample is not (310 <= index < 409), index


def test_an_answer_that_its_own_length_made_late_is_no_reason_to_refuse_or_to_cut() -> None:
    """One answer of twenty takes 14 s by its length, of 10 s that are promised; the others take 2."""
    pool = controller(slo=SLO(e2e_s=10.0), law="deadline", size=32)
    for index in range(600):
        now = 100.0 + index / 8
        seconds, tokens = (14.0, 700) if index % 20 == 0 else (1.6, 80)
        pool.observe(
            observation(
                seconds,
                done=now,
                batch=16,
                first=0.05,
                tokens=tokens,
                generation=pool.setpoints.generation,
            )
        )
        if index % 8 == 7:
            pool.tick(now, Load(inflight=16, inflight_calls=16, app_limited=True))
    assert pool.setpoints.max_batch_size >= 32
    admitted = [pool.admit(job(175.0 + i / 8), 175.0 + i / 8, NOBODY_WAITS).admitted for i in range(80)]
    assert all(admitted)
