"""The half that requests pass, alone: under given SLOs, setpoints and terms, on times that are made up."""

from __future__ import annotations

import pytest

from controller.dispatch.dispatcher import Dispatcher, LawTerms
from controller.load import Load
from controller.measure.evidence import Mode
from controller.measure.promises import Promises
from controller.observation import Observation, Result
from controller.setpoints import Setpoints
from controller.slo import SLO
from controller.verdict import Choice
from tests.controller.build import job, observation

TERMS = LawTerms(forms_batches=True, admission=True, late_target=0.01, e2e_share=None)
BUSY = Load(queued=9, inflight=8, inflight_calls=1, running=(99.0,), running_batches=(8,))


def dispatcher(
    mode: Mode = "merge", slo: SLO | None = None, size: int = 8, window_ms: float = 0.0, terms: LawTerms = TERMS
) -> Dispatcher:
    promises = Promises(SLO(e2e_s=10.0) if slo is None else slo, {"batch": SLO(e2e_s=100.0)})
    return Dispatcher(mode, promises, Setpoints(size, window_ms), terms, express_share=0.5, now=0.0)


def taught(made: Dispatcher, service_s: float = 4.0) -> Dispatcher:
    """Let it learn from forty calls of eight that took `service_s` each."""
    for index in range(40):
        for _ in range(8):
            made.observe(observation(service_s, done=service_s * (index + 1)), ())
    made.admit(job(98.9), 98.9, Load())  # so that no probe is due
    return made


@pytest.mark.parametrize(
    ("e2e_s", "load", "admission", "reason"),
    [
        (10.0, Load(), True, "idle"),
        (100.0, BUSY, True, "ok"),
        (1.0, BUSY, True, "slo_infeasible"),
        (1.0, BUSY, False, "no_admission"),
        (None, BUSY, True, "no_slo"),
    ],
)
def test_a_newcomer_is_judged_by_the_slo_and_terms_in_force(
    e2e_s: float | None, load: Load, admission: bool, reason: str
) -> None:
    made = taught(dispatcher())
    made.set_slos(Promises(SLO(e2e_s=e2e_s)), 99.0)
    made.follow(TERMS._replace(admission=admission))
    assert made.admit(job(99.0), 99.0, load).reason == reason


def test_a_class_is_judged_by_its_own_slo() -> None:
    made = taught(dispatcher(slo=SLO(e2e_s=1.0)))
    reasons = [made.admit(job(99.0, klass=klass), 99.0, BUSY).reason for klass in ("default", "batch")]
    assert reasons == ["slo_infeasible", "ok"]


@pytest.mark.parametrize(("mode", "inflight", "take"), [("gate", 0, 8), ("gate", 5, 3), ("merge", 0, 8)])
def test_a_choice_fills_the_setpoints_in_force(mode: Mode, inflight: int, take: int) -> None:
    made = dispatcher(mode, size=4)
    made.enter(Setpoints(8, 0.0, 1))
    waiting = [job(1.0)] * 20
    assert made.choose(waiting, 1.0, Load(queued=20, inflight=inflight, inflight_calls=inflight)).take == take


def test_terms_say_whether_the_hopeless_are_shed() -> None:
    made = taught(dispatcher(slo=SLO(e2e_s=5.0)))
    waiting = [job(90.0), job(100.0)]
    assert made.choose(waiting, 100.0, Load(queued=2)) == Choice(1, (0,))
    made.follow(TERMS._replace(admission=False))
    assert made.choose(waiting, 100.0, Load(queued=2)) == Choice(2, ())


@pytest.mark.parametrize(
    ("queued", "arrivals", "window_s"),
    [(1, 1000, 0.05), (8, 1000, 0.0), (1, 0, 0.0)],
    ids=["company is coming", "the batch is full", "nobody comes"],
)
def test_the_window_is_kept_while_company_is_expected(queued: int, arrivals: int, window_s: float) -> None:
    made = dispatcher(window_ms=50.0)
    made.arrived(arrivals)
    made.tick(1.0)
    assert made.window_s(1.0, Load(queued=queued)) == pytest.approx(window_s)


def test_a_tick_tells_once_whether_the_cap_held_work_back() -> None:
    made = dispatcher(size=4)
    made.choose([job(1.0)] * 9, 1.0, Load(queued=9))
    assert (made.tick(2.0), made.tick(3.0)) == (True, False)
    made.choose([job(1.0)] * 4, 3.0, Load(queued=4))
    assert made.tick(4.0) is False


def test_arrivals_here_and_elsewhere_make_one_rate_and_one_count() -> None:
    made = dispatcher()
    for _ in range(3):
        made.admit(job(1.0), 1.0, Load())
    made.arrived(7)
    made.tick(2.0)
    made.arrived(5)
    assert (made.arrival_rate, made.arrivals) == (5.0, 15)


def test_limits_are_of_the_classes_that_were_answered_in_the_last_minute() -> None:
    made = dispatcher(slo=SLO(e2e_s=10.0))
    whole = made.limits[0].limit_s
    made.observe(Observation("pool", 1.0, 2.0, Result.OK, 0, dispatched=1.0, klass="batch"), ())
    made.tick(3.0)
    assert made.limits[0].limit_s == pytest.approx(10.0 * whole)
    made.tick(63.0)
    assert made.limits[0].limit_s == whole


def test_what_was_refused_teaches_no_model_and_what_was_late_is_remembered_by_admission() -> None:
    made = dispatcher("gate")
    before = made.upstream.as_dict()
    made.observe(Observation("pool", 1.0, 1.0, Result.REFUSED, 0), ())
    made.observe(Observation("pool", 1.0, 9.0, Result.SHED, 0), ())
    assert made.upstream.as_dict() == before
    assert made.admission.room.as_dict() != dispatcher("gate").admission.room.as_dict()
