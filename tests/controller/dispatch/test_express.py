from __future__ import annotations

import pytest

from controller.dispatch.express import ExpressLane
from controller.load import Load
from controller.verdict import Choice
from policies.base import Job
from tests.controller.build import controller, job


def fast(arrival: float = 0.0) -> Job:
    return job(arrival, klass="interactive", express=True)


def lane(share: float = 0.5) -> ExpressLane:
    known = ExpressLane(share)
    known.arrived(fast())
    return known


def test_a_batch_of_express_requests_leaves_room_for_the_others() -> None:
    jobs = [fast(), fast(), fast(), fast(), job(), job()]
    choice = lane().bound(Choice(4, ()), jobs, 4, Load(), whole_batches=True)
    assert choice.sent(6) == [0, 1, 4, 5]
    assert choice.passed == (2, 3)


def test_the_share_is_free_for_the_taking_while_nobody_else_waits() -> None:
    jobs = [fast()] * 4
    assert lane().bound(Choice(4, ()), jobs, 4, Load(), whole_batches=True) == Choice(4, ())


def test_places_that_express_requests_hold_already_count_at_a_gate() -> None:
    jobs = [fast(), job()]
    full = Load(inflight=7, inflight_express=4)
    assert lane().bound(Choice(1, ()), jobs, 8, full, whole_batches=False).sent(2) == [1]
    room = Load(inflight=7, inflight_express=3)
    assert lane().bound(Choice(1, ()), jobs, 8, room, whole_batches=False) == Choice(1, ())


def test_the_shed_are_not_called_back() -> None:
    jobs = [job(), fast(), fast(), job()]
    choice = lane().bound(Choice(2, (0,)), jobs, 2, Load(), whole_batches=True)
    assert choice.shed == (0,)
    assert choice.sent(4) == [1, 3]


@pytest.mark.parametrize(
    ("express_late", "other_late", "expected"), [(0, 20, 0.45), (20, 0, 0.55), (20, 20, 0.5), (0, 0, 0.5)]
)
def test_the_share_follows_whoever_is_late_and_holds_when_both_are(
    express_late: int, other_late: int, expected: float
) -> None:
    known = lane()
    known.bound(Choice(1, ()), [fast(), fast(), job()], 1, Load(inflight_express=9), whole_batches=False)
    for index in range(40):
        known.observe("interactive", 1.0, index < express_late)
        known.observe("default", 1.0, index < other_late)
    shifted = known.tick(10.0, 0.01)
    assert known.share == pytest.approx(expected)
    assert (shifted is not None) is (expected != 0.5)


def test_neither_side_can_be_shut_out_however_late_the_other_is() -> None:
    known = lane()
    for step in range(100):
        for _ in range(40):
            known.observe("interactive", 20.0 * step, False)
            known.observe("default", 20.0 * step, True)
        known.tick(20.0 * step + 10.0, 0.01)
    assert known.share == pytest.approx(0.1)


def test_a_flood_of_express_requests_does_not_starve_the_others() -> None:
    pool = controller(size=8, options={"admission": False})
    waiting = [fast(float(index)) for index in range(20)] + [job(30.0 + index) for index in range(20)]
    for one in waiting:
        pool.admit(one, 50.0, Load(queued=1))
    choice = pool.choose(waiting, 50.0, Load(queued=40))
    taken = [waiting[index].express for index in choice.sent(40)]
    assert taken.count(True) == taken.count(False) == 4
    assert pool.snapshot(51.0)["express"]["classes"] == ["interactive"]


def test_a_moved_share_is_a_decision_that_can_be_read() -> None:
    pool = controller(size=8)
    pool.admit(fast(), 0.0, Load(queued=1))
    for index in range(40):
        pool.dispatcher.express.observe("interactive", 1.0, False)
        pool.dispatcher.express.observe("default", 1.0, index < 20)
    decision = pool.tick(20.0, Load(app_limited=True))
    assert decision is not None
    assert decision.rule == "express.less"
    assert (
        decision.text == "20 of 40 others were late and none of 40 express requests: the express lane's share "
        "from 0.50 to 0.45."
    )
