"""When merged batches go, and what is in them."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.load import Load
from controller.setpoints import Setpoints
from policies.base import Job
from policies.registry import create_policy
from proxy.dispatch.merge import Batch, MergeBatcher
from proxy.dispatch.queue import Drop, Lane, Waiting, WaitQueue
from proxy.observe.hooks import ClosedBy
from tests.proxy.dispatch.test_gate import Former
from tests.support.virtual_clock import VirtualClock


class Item(Waiting):
    __slots__ = ("key", "why")

    def __init__(self, job: Job, key: object, **kwargs: object) -> None:
        super().__init__(job, **kwargs)  # type: ignore[arg-type]
        self.key = key
        self.why: Drop | None = None

    def dropped(self, why: Drop) -> None:
        self.why = why


class Merger:
    """One upstream of `depth` slots that answers when told to."""

    def __init__(
        self, size: int = 4, window_ms: float = 0.0, *, depth: int = 2, max_tokens: float | None = None
    ) -> None:
        self.clock = VirtualClock()
        self.former = Former(size, window_ms)
        self.depth = depth
        self.inflight: list[Batch] = []
        self.sent: list[Batch] = []
        self.queue = WaitQueue(create_policy("fcfs"), self.clock, max_requests=10_000, on_left=self._left)
        self.merger = MergeBatcher(
            self.queue,
            self.former,
            self.clock,
            slots=self,
            load=lambda now: Load(),
            dispatch=self._dispatch,
            max_tokens=max_tokens,
        )
        self.serial = 0

    def free(self) -> int:
        return self.depth - len(self.inflight)

    def idle(self) -> bool:
        return not self.inflight

    def _left(self, lane: Lane) -> None:
        self.merger.left(lane)

    def _dispatch(self, batch: Batch) -> None:
        assert len(self.inflight) < self.depth
        self.inflight.append(batch)
        self.sent.append(batch)

    def offer(self, key: object = "k", items: int = 1, tokens: float = 1.0, **kwargs: object) -> Item:
        self.serial += 1
        item = Item(Job(str(self.serial), self.clock.now()), key, items=items, tokens=tokens, **kwargs)
        self.merger.offer(item, key)  # type: ignore[arg-type]
        return item

    def answer(self) -> None:
        self.inflight.pop(0)
        self.merger.poke()

    @property
    def sizes(self) -> list[int]:
        return [batch.items for batch in self.sent]


def test_an_idle_upstream_with_nothing_to_gain_is_not_made_to_wait() -> None:
    m = Merger(window_ms=0.0)
    m.offer()
    assert m.sizes == [1]
    assert m.sent[0].closed_by is ClosedBy.IDLE


def test_the_window_starts_at_the_first_waiting_item() -> None:
    m = Merger(size=10, window_ms=5.0)
    m.offer()
    m.clock.advance(0.004)
    m.offer()
    assert m.sizes == []
    m.clock.advance(0.001)
    assert m.sizes == [2]
    assert m.sent[0].closed_by is ClosedBy.WINDOW


def test_a_batch_knows_since_when_only_the_window_has_held_it() -> None:
    m = Merger(size=2, window_ms=5.0)
    began = m.clock.now()
    m.offer()
    m.clock.advance(0.002)
    m.offer()
    assert m.sent[0].held_since == began
    m.offer()
    m.clock.advance(0.020)
    assert len(m.sent) == 1, "the upstream is busy, and that is no matter of the window"
    m.answer()
    assert m.sent[1].held_since is None


def test_who_waits_for_a_busy_upstream_is_held_by_the_window_only_once_that_is_free() -> None:
    m = Merger(size=4, window_ms=5.0)
    began = m.clock.now()
    m.offer("a")
    m.clock.advance(0.003)
    m.offer("b")
    m.clock.advance(0.002)
    m.answer()
    free = m.clock.now()
    m.clock.advance(0.003)
    assert [batch.members[0].key for batch in m.sent] == ["a", "b"]
    assert [batch.held_since for batch in m.sent] == [began, free]


def test_a_full_batch_goes_at_once() -> None:
    m = Merger(size=4, window_ms=1000.0)
    for _ in range(4):
        m.offer()
    assert m.sizes == [4]
    assert m.sent[0].closed_by is ClosedBy.FULL


def test_small_batches_are_never_pushed_at_a_busy_model() -> None:
    m = Merger(size=4, window_ms=1.0, depth=2)
    m.offer()
    m.clock.advance(0.001)
    assert m.sizes == [1]
    for _ in range(3):
        m.offer()
    m.clock.advance(1.0)
    assert m.sizes == [1], "the window is a minimum wait, not a trigger towards a busy model"
    m.offer()
    assert m.sizes == [1, 4], "a full batch uses the second slot"
    m.offer()
    m.clock.advance(1.0)
    m.answer()
    assert m.sizes == [1, 4]
    m.answer()
    assert m.sizes == [1, 4, 1], "idle again: what has waited long enough goes"


def test_two_calls_in_flight_fill_themselves() -> None:
    """A closed loop of 128 callers in front of batches of 32: every batch but the first few is full."""
    m = Merger(size=32, window_ms=2.0, depth=2)
    for _ in range(128):
        m.offer()
    for _ in range(50):
        finished = m.inflight[0]
        m.clock.advance(0.005)
        m.answer()
        for _ in range(finished.items):
            m.offer()
    assert m.sizes[1:].count(32) == len(m.sizes) - 1


def test_express_skips_the_window_and_the_wait_for_an_idle_model() -> None:
    m = Merger(size=4, window_ms=1000.0, depth=2)
    m.offer(express=True)
    assert m.sent[0].closed_by is ClosedBy.EXPRESS
    m.offer(express=True)
    assert m.sizes == [1, 1]


def test_items_count_and_not_requests() -> None:
    m = Merger(size=8, window_ms=1000.0)
    m.offer(items=5)
    m.offer(items=3)
    assert m.sizes == [8]
    assert len(m.sent[0].members) == 2


def test_a_token_budget_closes_a_batch() -> None:
    m = Merger(size=100, window_ms=1000.0, max_tokens=10.0)
    m.offer(tokens=6.0)
    m.offer(tokens=4.0)
    assert m.sizes == [2]
    assert m.sent[0].closed_by is ClosedBy.TOKENS


def test_an_oversize_item_goes_alone_at_once() -> None:
    m = Merger(size=4, window_ms=1000.0, depth=3, max_tokens=10.0)
    m.offer(items=9)
    assert m.sizes == [9]
    m.offer(tokens=50.0)
    assert m.sizes == [9, 1]


def test_different_keys_never_share_a_batch() -> None:
    m = Merger(size=8, window_ms=5.0)
    for n in range(6):
        m.offer(key=n % 2)
    m.clock.advance(0.005)
    m.answer()
    assert [{item.key for item in b.members} for b in m.sent] == [{0}, {1}]  # type: ignore[attr-defined]


def test_a_member_that_left_is_not_in_the_batch() -> None:
    m = Merger(size=8, window_ms=5.0)
    gone, stays = m.offer(), m.offer()
    m.queue.cancel(gone)
    m.clock.advance(0.005)
    assert m.sent[0].members == [stays]


def test_a_lane_that_everybody_left_sends_nothing() -> None:
    m = Merger(size=8, window_ms=5.0)
    m.queue.cancel(m.offer())
    m.clock.advance(1.0)
    assert m.sent == []
    m.offer()
    m.clock.advance(0.005)
    assert m.sizes == [1]


def test_expired_items_are_dropped_before_dispatch() -> None:
    m = Merger(size=8, window_ms=0.0, depth=1)
    m.offer()
    late = m.offer(deadline=m.clock.now() + 1.0)
    m.clock.advance(2.0)
    assert late.why is Drop.EXPIRED
    m.answer()
    assert m.sizes == [1]


def test_shed_items_make_room() -> None:
    m = Merger(size=2, window_ms=0.0, depth=1)
    m.offer()
    late, fine = m.offer(), m.offer()
    m.former.doomed = {late.job.id}
    m.answer()
    assert late.why is Drop.SHED
    assert m.sent[-1].members == [fine]


def test_draining_sends_what_waits() -> None:
    m = Merger(size=8, window_ms=1000.0, depth=2)
    m.offer(key="a")
    m.offer(key="b")
    m.merger.draining = True
    m.merger.poke()
    assert {b.closed_by for b in m.sent} == {ClosedBy.DRAIN}
    assert len(m.sent) == 2


def test_a_smaller_setpoint_makes_waiting_lanes_full() -> None:
    m = Merger(size=8, window_ms=1000.0)
    for _ in range(3):
        m.offer()
    m.former.setpoints = Setpoints(2, 1000.0, 1)
    m.merger.refresh()
    assert m.sizes == [2]
    assert m.sent[0].generation == 1


def test_the_hold_hook_keeps_everything_until_enough_wait() -> None:
    m = Merger(size=8, window_ms=0.0)
    m.merger.hold = 3
    m.offer()
    m.offer()
    assert m.sizes == []
    m.offer()
    assert m.sizes == [3]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 2), st.integers(1, 6), st.booleans()),
        st.tuples(st.just("answer"), st.just(0), st.just(0), st.booleans()),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0), st.booleans()),
        st.tuples(st.just("wait"), st.integers(0, 12), st.just(0), st.booleans()),
        st.tuples(st.just("resize"), st.integers(1, 6), st.just(0), st.booleans()),
    ),
    max_size=60,
)


@given(steps=STEPS, window_ms=st.sampled_from([0.0, 5.0]), budget=st.sampled_from([None, 8.0]))
@settings(max_examples=200, deadline=None)
def test_every_item_goes_exactly_once_and_limits_hold(
    steps: list[tuple], window_ms: float, budget: float | None
) -> None:
    m = Merger(size=4, window_ms=window_ms, depth=2, max_tokens=budget)
    offered: list[Item] = []
    cancelled: set[int] = set()
    for what, a, b, flag in steps:
        count = len(m.sent)
        if what == "offer":
            offered.append(m.offer(key=a, items=b, tokens=float(b), express=flag and a == 0, deadline=inf))
        elif what == "answer" and m.inflight:
            m.answer()
        elif what == "cancel":
            waiting = [i for i in offered if i.lane is not None]
            if waiting:
                m.queue.cancel(waiting[a % len(waiting)])
                cancelled.add(id(waiting[a % len(waiting)]))
        elif what == "wait":
            m.clock.advance(a / 1000.0)
        elif what == "resize":
            m.former.setpoints = m.former.setpoints.changed(max_batch_size=a)
            m.merger.refresh()
        size = m.former.setpoints.max_batch_size
        for batch in m.sent[count:]:
            assert len({i.key for i in batch.members}) == 1  # type: ignore[attr-defined]
            assert len(batch.members) == 1 or batch.items <= size
            assert len(batch.members) == 1 or budget is None or batch.tokens <= budget
        waiting = [i for i in offered if i.lane is not None]
        if waiting and not m.inflight:
            assert m.clock.now() < min(i.job.arrival for i in waiting) + window_ms / 1000.0 + 1e-9
            assert window_ms > 0
    for _ in range(1000):
        m.clock.advance(0.01)
        if not m.inflight:
            break
        m.answer()
    assert len(m.queue) == 0
    sent = [id(i) for batch in m.sent for i in batch.members]
    assert len(sent) == len(set(sent)), "somebody went twice"
    assert set(sent) | cancelled == {id(i) for i in offered}
    assert not set(sent) & cancelled
