from __future__ import annotations

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.measure.promises import Promises
from controller.setpoints import Bounds, Setpoints
from controller.shared import Follower, Leader, orders
from controller.slo import SLO
from tests.controller.build import job, observation

TIGHT, LOOSE = SLO(e2e_s=3.0), SLO(e2e_s=60.0)


def pool_with_classes(law: str = "deadline", size: int = 8) -> PoolController:
    return PoolController(
        "pool",
        slo=SLO(e2e_s=10.0),
        class_slos={"interactive": TIGHT, "batch": LOOSE},
        setpoints=Setpoints(size, 0.0),
        bounds=Bounds(1, 64),
        law=law,
        mode="merge",
        now=0.0,
        wall=lambda: 0.0,
    )


def taught(pool: PoolController, seconds: float = 2.0, klass: str = "default") -> PoolController:
    for index in range(40):
        for _ in range(4):
            seen = observation(seconds, done=10.0 + 3.0 * index, batch=4)
            seen.klass = klass
            pool.observe(seen)
    return pool


def test_a_request_is_judged_by_the_promise_of_its_class() -> None:
    pool = pool_with_classes()
    for klass, late in (("interactive", 1), ("default", 0), ("batch", 0)):
        seen = observation(5.0, done=50.0)
        seen.klass = klass
        pool.observe(seen)
        assert pool.snapshot(51.0)["classes"][klass]["error_budget"]["windows"]["1h"]["late"] == late
    assert pool.snapshot(51.0)["classes"]["interactive"]["slo"]["e2e_ms"] == 3000.0


def test_admission_asks_each_class_for_what_was_promised_to_it() -> None:
    pool = taught(pool_with_classes())
    now = 130.0
    behind = Load(queued=8, inflight=8, inflight_calls=1, running=(now - 0.5,), running_batches=(8,))
    for klass in ("batch", "default", "interactive"):
        pool.admit(job(now, klass="batch"), now, Load())  # the probe is spent
        verdict = pool.admit(job(now, klass=klass), now + 0.001, behind)
        assert verdict.admitted is (klass != "interactive"), klass


def test_a_hopeless_class_is_shed_and_the_patient_one_is_served() -> None:
    pool = taught(pool_with_classes())
    waiting = [job(128.0, klass="interactive"), job(128.0, klass="batch"), job(128.0, klass="interactive")]
    choice = pool.choose(waiting, 130.5, Load(queued=3))
    assert choice.shed == (0, 2)
    assert [waiting[index].klass for index in choice.sent(3)] == ["batch"]


def test_the_batch_size_answers_to_the_tightest_class_that_has_traffic() -> None:
    promises = Promises(SLO(e2e_s=10.0), {"interactive": TIGHT, "batch": LOOSE})
    assert [limit.limit_s for limit in promises.limits("merge", 0.5, [])] == [5.0]
    assert [limit.limit_s for limit in promises.limits("merge", 0.5, ["batch"])] == [30.0]
    assert [limit.limit_s for limit in promises.limits("merge", 0.5, ["batch", "interactive", "default"])] == [1.5]


def test_slow_answers_that_kept_their_own_promise_do_not_shrink_the_batch() -> None:
    for klass, shrinks in (("batch", False), ("interactive", True)):
        pool = pool_with_classes("aimd")
        for second in range(40):
            seen = observation(4.0, done=10.0 + second, batch=8)
            seen.klass = klass
            pool.observe(seen)
        pool.tick(50.0, Load(queued=9, inflight=8, inflight_calls=1))
        assert (pool.setpoints.max_batch_size < 8) is shrinks, klass


def test_the_promise_of_one_class_can_be_changed_live() -> None:
    pool = taught(pool_with_classes())
    decision = pool.set_slo(SLO(e2e_s=1.0), 130.0, "admin:test", "batch")
    assert decision.text == "admin:test tightened the target of class batch: e2e from 60000 ms to 1000 ms."
    assert pool.slo_of("batch") == SLO(e2e_s=1.0)
    assert pool.slo_of("interactive") == TIGHT
    assert pool.slo == SLO(e2e_s=10.0)


def test_a_class_can_be_given_the_pools_promise_again() -> None:
    pool = taught(pool_with_classes())
    decision = pool.set_slo(None, 130.0, "admin:test", "batch")
    assert (decision.old["own"], decision.new["own"], decision.new["e2e_ms"]) == (True, False, 10_000.0)
    assert pool.slo_of("batch") == pool.slo
    pool.set_slo(SLO(e2e_s=3.0), 131.0, "admin:test")
    assert pool.slo_of("batch") == SLO(e2e_s=3.0)
    with pytest.raises(ValueError, match="a pool always has a promise"):
        pool.set_slo(None, 132.0, "admin:test")


def test_processes_that_follow_hear_of_a_class_that_has_the_pools_promise_again() -> None:
    def made(kind: type[PoolController]) -> PoolController:
        return kind(
            "pool",
            slo=SLO(e2e_s=10.0),
            setpoints=Setpoints(8, 0.0),
            bounds=Bounds(1, 64, 0.0, 100.0),
            class_slos={"batch": LOOSE, "interactive": TIGHT},
            now=0.0,
        )

    leader, follower = made(Leader), made(Follower)
    assert isinstance(follower, Follower)
    leader.set_slo(None, 1.0, "admin:test", "batch")
    leader.set_slo(SLO(e2e_s=2.0), 1.0, "admin:test", "interactive")
    follower.adopt(orders(leader), 8, 2.0)
    assert follower.class_slos == leader.class_slos == {"interactive": SLO(e2e_s=2.0)}
