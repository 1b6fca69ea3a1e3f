"""When the gate lets sequences through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.load import Load
from controller.setpoints import Setpoints
from controller.verdict import Choice
from policies.base import Job
from policies.registry import create_policy
from proxy.dispatch.gate import GateBatcher
from proxy.dispatch.queue import Drop, Waiting, WaitQueue
from proxy.observe.hooks import ClosedBy
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.lease import GATED, Lease, Ledger
from tests.support.virtual_clock import VirtualClock


class Former:
    """A controller that does what the test says."""

    def __init__(self, size: int = 2, window_ms: float = 0.0) -> None:
        self.setpoints = Setpoints(size, window_ms)
        self.take: int | None = None
        self.doomed: set[str] = set()

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        shed = tuple(i for i, job in enumerate(candidates) if job.id in self.doomed)
        return Choice(len(candidates) if self.take is None else self.take, shed)

    def window_s(self, now: float, load: Load) -> float:
        return self.setpoints.window_ms / 1000.0


class Seq(Waiting):
    __slots__ = ("closed_by", "why")

    def __init__(self, job: Job, **kwargs: object) -> None:
        super().__init__(job, **kwargs)  # type: ignore[arg-type]
        self.closed_by: ClosedBy | None = None
        self.why: Drop | None = None

    def dropped(self, why: Drop) -> None:
        assert self.why is None
        assert self.closed_by is None
        self.why = why


class Somewhere:
    """An endpoint, as far as leases go."""

    def entered(self, work: float) -> bool:
        return False

    def left(self, work: float, trial: bool) -> None:
        pass


class Gate:
    def __init__(self, size: int = 2, window_ms: float = 0.0, policy: str = "fcfs") -> None:
        self.clock = VirtualClock()
        self.former = Former(size, window_ms)
        self.queue = WaitQueue(create_policy(policy), self.clock, max_requests=1000)
        self.gone: list[Seq] = []
        self.ledger, self.leases = Ledger(), list[Lease]()
        self.gate = GateBatcher(
            self.queue, self.former, self.clock, book=self.ledger.gate, load=self.load, grant=self._grant
        )
        self.ledger.on_free = self.gate.poke
        self.serial = 0

    def load(self, now: float) -> Load:
        return Load(queued=len(self.queue), inflight=self.gate.inflight)

    def _grant(self, waiting: Waiting, closed_by: ClosedBy) -> None:
        assert isinstance(waiting, Seq)
        assert waiting.closed_by is None
        waiting.closed_by = closed_by
        self.gone.append(waiting)
        self._take()

    def _take(self) -> None:
        self.leases.append(self.ledger.open(cast("Endpoint", Somewhere()), kind=GATED))

    def enter(self, job: Job, express: bool) -> bool:
        """Go straight through, if that may be."""
        if not self.gate.try_enter(job, express, self.clock.now(), self.load(0.0)):
            return False
        self._take()
        return True

    def release(self) -> None:
        """The oldest is over."""
        self.leases.pop(0).release()

    def offer(self, name: str | None = None, *, slack: float = 0.0, **kwargs: object) -> Seq:
        self.serial += 1
        seq = Seq(Job(name or str(self.serial), self.clock.now(), class_slack=slack), **kwargs)
        self.gate.offer(seq)
        return seq

    @property
    def names(self) -> list[str]:
        return [seq.job.id for seq in self.gone]


def test_no_more_in_flight_than_the_setpoint() -> None:
    g = Gate(size=2)
    seqs = [g.offer() for _ in range(5)]
    assert [s.closed_by is not None for s in seqs] == [True, True, False, False, False]
    g.release()
    assert len(g.gone) == 3
    assert g.gate.inflight == 2


def test_a_free_gate_with_no_window_is_passed_without_queueing() -> None:
    g = Gate(size=1)
    assert g.enter(Job("n", 0.0), False)
    assert not g.enter(Job("n", 0.0), False)


def test_nobody_overtakes_the_queue_by_the_fast_path() -> None:
    g = Gate(size=1)
    g.offer()
    g.offer()
    g.former.setpoints = Setpoints(5, 0.0)
    assert not g.enter(Job("n", 0.0), False)


def test_window_holds_the_first_so_that_the_policy_can_reorder() -> None:
    g = Gate(size=8, window_ms=5.0, policy="priority")
    g.offer("patient", slack=10.0)
    g.clock.advance(0.002)
    g.offer("urgent")
    assert g.names == []
    g.clock.advance(0.003)
    assert g.names == ["urgent", "patient"]
    assert {s.closed_by for s in g.gone} == {ClosedBy.WINDOW}


def test_a_gate_knows_since_when_only_the_window_has_held_somebody() -> None:
    g = Gate(size=2, window_ms=5.0)
    began = g.clock.now()
    g.offer()
    assert g.gate.held_since == began
    g.clock.advance(0.005)
    assert len(g.gone) == 1
    g.offer()
    g.offer()
    assert g.gate.held_since is None, "it is full, and that is no matter of the window"


def test_as_many_as_fit_do_not_wait_for_the_window() -> None:
    g = Gate(size=3, window_ms=1000.0)
    for _ in range(3):
        g.offer()
    assert len(g.gone) == 3
    assert {s.closed_by for s in g.gone} == {ClosedBy.FULL}


def test_express_skips_the_window() -> None:
    g = Gate(size=8, window_ms=1000.0)
    g.offer("calm")
    assert g.names == []
    g.offer("hasty", express=True)
    assert set(g.names) == {"calm", "hasty"}
    assert g.enter(Job("n", 0.0), True)


def test_window_leaves_time_to_meet_the_deadline() -> None:
    g = Gate(size=8, window_ms=1000.0)
    seq = Seq(Job("d", g.clock.now(), deadline=g.clock.now() + 0.1))
    g.gate.offer(seq)
    g.clock.advance(0.051)
    assert seq.closed_by is ClosedBy.DEADLINE


def test_draining_holds_nobody_back() -> None:
    g = Gate(size=8, window_ms=1000.0)
    seq = g.offer()
    g.gate.draining = True
    g.gate.poke()
    assert seq.closed_by is ClosedBy.DRAIN


def test_what_can_no_longer_make_it_is_shed_and_its_slot_goes_to_the_next() -> None:
    g = Gate(size=1)
    g.offer("running")
    g.former.doomed = {"late"}
    late, fine = g.offer("late"), g.offer("fine")
    g.release()
    assert late.why is Drop.SHED
    assert fine.closed_by is not None
    assert g.gate.inflight == 1


def test_a_controller_that_takes_none_cannot_stop_an_idle_pool() -> None:
    g = Gate(size=4)
    g.former.take = 0
    assert g.offer().closed_by is not None
    waiting = g.offer()
    assert waiting.closed_by is None, "with something in flight there will be another occasion"
    g.release()
    assert waiting.closed_by is not None


def test_a_larger_setpoint_lets_the_waiting_through_at_once() -> None:
    g = Gate(size=1)
    for _ in range(4):
        g.offer()
    g.former.setpoints = Setpoints(3, 0.0)
    g.gate.poke()
    assert len(g.gone) == 3


def test_the_bound_that_held_work_back_is_remembered_until_asked() -> None:
    g = Gate(size=2)
    g.offer()
    assert not g.gate.held_back
    g.offer()
    g.offer()
    assert g.gate.held_back


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.floats(0.0, 20.0), st.booleans()),
        st.tuples(st.just("release"), st.just(0.0), st.booleans()),
        st.tuples(st.just("cancel"), st.just(0.0), st.booleans()),
        st.tuples(st.just("wait"), st.floats(0.0, 0.02), st.booleans()),
        st.tuples(st.just("resize"), st.floats(1.0, 6.0), st.booleans()),
    ),
    max_size=60,
)


@given(steps=STEPS, window_ms=st.sampled_from([0.0, 5.0]))
@settings(max_examples=150, deadline=None)
def test_never_too_many_never_idle_beside_a_ripe_queue(steps: list[tuple], window_ms: float) -> None:
    g = Gate(size=3, window_ms=window_ms, policy="priority")
    offered: list[Seq] = []
    for what, number, flag in steps:
        before = g.gate.inflight
        if what == "offer":
            offered.append(g.offer(slack=number, express=flag))
        elif what == "release" and g.gate.inflight:
            g.release()
        elif what == "cancel":
            waiting = [s for s in offered if s.lane is not None]
            if waiting:
                g.queue.cancel(waiting[0])
        elif what == "wait":
            g.clock.advance(number)
        elif what == "resize":
            g.former.setpoints = g.former.setpoints.changed(max_batch_size=int(number))
            g.gate.poke()
        size = g.former.setpoints.max_batch_size
        assert g.gate.inflight <= max(size, before)
        waiting = [s for s in offered if s.lane is not None]
        if waiting and g.gate.inflight < size:
            oldest = min(s.job.arrival for s in waiting)
            assert g.clock.now() < oldest + window_ms / 1000.0, "a ripe request was left beside a free slot"
            assert not any(s.express for s in waiting)
    g.clock.advance(1.0)
    while g.gate.inflight:
        g.release()
        g.clock.advance(0.01)
    assert len(g.queue) == 0
    assert g.clock.pending == 0 or g.clock.next_at is not None


def test_a_newcomer_whom_the_controller_holds_back_does_not_pass_a_free_gate() -> None:
    g = Gate(size=4)
    g.former.take = 0
    assert not g.enter(Job("n", 0.0), False)
    assert g.gate.inflight == 0
