from __future__ import annotations

import json
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.slo import SLO
from controller.tune.experiment import Arm
from tests.controller.build import controller, job, observation

BUSY = Load(queued=9, inflight=8, inflight_calls=1)


@dataclass
class ClosedLoop:
    """A worker that slows with concurrency, in front of which 16 streams each keep one request going."""

    pool: PoolController
    streams: int = 16
    tokens: int = 40
    now: float = 0.0
    waiting: list[float] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    events: list[tuple[float, int, Observation]] = field(default_factory=list)
    next_tick: float = 1.0
    count: int = 0

    def run(self, until: float) -> None:
        if not self.count:
            self.waiting = [0.0] * self.streams
        while True:
            self._dispatch()
            self.now = min(self.events[0][0], self.next_tick)
            if self.now > until:
                return
            if self.now == self.next_tick:
                held = bool(self.waiting)
                load = Load(len(self.waiting), 0.0, len(self.running), len(self.running), self.running)
                self.pool.tick(self.now, load if held else Load(inflight=len(self.running), app_limited=True))
                self.next_tick += 1.0
                continue
            _, _, obs = heappop(self.events)
            assert obs.dispatched is not None
            self.running.remove(obs.dispatched)
            self.pool.observe(obs)
            self.waiting.append(self.now)

    def _dispatch(self) -> None:
        while self.waiting and len(self.running) < self.pool.setpoints.max_batch_size:
            self.running.append(self.now)
            together = len(self.running)
            self.count += 1
            pace = (0.02 + 0.01 * together) * (1.0 + 0.1 * (self.count % 5))
            first = self.now + 5.0 * pace
            done = first + pace * (self.tokens - 1)
            obs = Observation(
                "pool",
                self.waiting.pop(0),
                done,
                Result.OK,
                self.pool.setpoints.generation,
                dispatched=self.now,
                first_byte=first,
                last_byte=done,
                batch=together,
                prompt_tokens=30,
                output_tokens=self.tokens,
                streamed=True,
            )
            heappush(self.events, (done, self.count, obs))


# Targets that eight streams at once just keep.
TARGETS = [SLO(e2e_s=8.0), SLO(tpot_s=0.15), SLO(ttft_s=1.8)]


def scaled(slo: SLO, factor: float) -> SLO:
    return SLO(**{f"{name}_s": target * factor for name, target in slo.targets()})


@pytest.mark.parametrize("slo", TARGETS, ids=["e2e", "tpot", "ttft"])
@pytest.mark.parametrize("law", ["aimd", "deadline"])
@pytest.mark.parametrize("moment", [30.0, 61.5, 99.9])
def test_a_changed_target_moves_the_batch_size_the_right_way_within_ten_ticks(
    slo: SLO, law: str, moment: float
) -> None:
    for factor, sign in ((0.5, -1), (2.0, 1)):
        loop = ClosedLoop(controller(slo=slo, law=law, size=8, options={"admission": False}))
        loop.run(moment)
        before = loop.pool.setpoints.max_batch_size
        loop.pool.set_slo(scaled(slo, factor), loop.now, "admin:test")
        loop.run(loop.now + 10.0)
        after = loop.pool.setpoints.max_batch_size
        assert (after - before) * sign > 0, f"{factor}x: {before} -> {after}"


def test_the_decision_about_a_changed_target_tells_what_came_of_it() -> None:
    loop = ClosedLoop(controller(slo=TARGETS[0], options={"admission": False}))
    loop.run(30.0)
    changed = loop.pool.set_slo(scaled(TARGETS[0], 0.5), loop.now, "admin:test")
    loop.run(60.0)
    entries = {entry.id: entry for entry in loop.pool.decisions.since(0)}
    assert "moved from" in entries[changed.id].outcome
    assert all(entry.text.endswith(".") for entry in entries.values())
    moved = [entry for entry in entries.values() if entry.rule.startswith("aimd")]
    assert moved[0].outcome.startswith("In ")


def test_a_target_change_recounts_the_window() -> None:
    pool = controller(slo=SLO(e2e_s=10.0))
    for _ in range(50):
        pool.observe(observation(6.0, done=100.0))
    assert pool.snapshot(100.0)["attainment"]["e2e"]["late"] == 0
    pool.set_slo(SLO(e2e_s=5.0), 100.0, "admin:test")
    assert pool.snapshot(100.0)["attainment"]["e2e"]["late"] == 50


def test_a_pinned_knob_stays_and_goes_on_from_there_when_unpinned() -> None:
    pool = controller(slo=SLO(e2e_s=10.0))
    pool.pin({"max_batch_size": 20}, 1.0, "admin:test")
    for second in range(30):
        for _ in range(5):
            pool.observe(observation(9.9, done=10.0 + second, batch=20, generation=pool.setpoints.generation))
        pool.tick(10.0 + second, BUSY)
    assert pool.setpoints.max_batch_size == 20
    assert pool.pins == {"max_batch_size": 20}
    pool.unpin(None, 50.0, "admin:test")
    assert pool.pins == {}
    assert pool.setpoints.max_batch_size == 20
    pool.tick(50.0, BUSY)
    assert pool.setpoints.max_batch_size < 20


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_batch_size": 0}, "1..64"),
        ({"max_batch_size": 2.5}, "whole number"),
        ({"window_ms": -1.0}, "0..100"),
        ({"speed": 1.0}, "max_batch_size, window_ms"),
    ],
)
def test_a_bad_pin_says_what_would_be_right_and_changes_nothing(values: dict[str, float], words: str) -> None:
    pool = controller()
    with pytest.raises(ValueError, match=words):
        pool.pin(values, 1.0, "admin:test")
    assert pool.pins == {}
    assert len(pool.decisions) == 0


def test_a_frozen_pool_does_not_move() -> None:
    pool = controller(slo=SLO(e2e_s=1.0))
    pool.freeze(True, 1.0, "admin:test")
    for _ in range(50):
        pool.observe(observation(5.0, done=10.0))
    pool.tick(11.0, BUSY)
    assert pool.setpoints.max_batch_size == 8
    pool.freeze(False, 12.0, "admin:test")
    pool.tick(13.0, BUSY)
    assert pool.setpoints.max_batch_size < 8


def test_a_rollback_restores_what_was_before_the_decision() -> None:
    pool = controller(slo=SLO(e2e_s=1.0))
    for _ in range(50):
        pool.observe(observation(5.0, done=10.0))
    made = pool.tick(11.0, BUSY)
    assert made is not None
    pool.roll_back(made.id, 12.0, "admin:test")
    assert pool.setpoints.max_batch_size == 8
    assert pool.setpoints.generation == 2
    with pytest.raises(ValueError, match="not kept"):
        pool.roll_back(99, 12.0, "admin:test")


def test_every_kind_of_decision_about_knobs_is_undone_by_a_rollback() -> None:
    pool = controller()
    pinned = pool.pin({"max_batch_size": 20}, 1.0, "admin:test")
    pool.pin({"window_ms": 7.0}, 2.0, "admin:test")
    undone = pool.roll_back(pinned.id, 3.0, "admin:test")
    assert (pool.setpoints.max_batch_size, pool.pins) == (8, {"window_ms": 7.0}), "another pin stays"
    pool.roll_back(undone.id, 4.0, "admin:test")
    assert (pool.setpoints.max_batch_size, pool.pins) == (20, {"max_batch_size": 20, "window_ms": 7.0})
    window, rest = pool.unpin(["window_ms"], 5.0, "admin:test"), pool.unpin(None, 6.0, "admin:test")
    assert pool.pins == {}
    pool.roll_back(rest.id, 7.0, "admin:test")
    assert pool.pins == {"max_batch_size": 20}
    pool.roll_back(window.id, 8.0, "admin:test")
    assert pool.pins == {"max_batch_size": 20, "window_ms": 7.0}
    pool.pin({"max_batch_size": 30}, 8.0, "admin:test")
    pool.roll_back(pool.decisions.latest(1)[0].id, 9.0, "admin:test")
    assert (pool.setpoints.max_batch_size, pool.pins["max_batch_size"]) == (20, 20)


def test_what_a_law_moved_and_an_operator_holds_now_is_not_said_to_be_rolled_back() -> None:
    pool = controller(slo=SLO(e2e_s=1.0))
    for _ in range(50):
        pool.observe(observation(5.0, done=10.0))
    made = pool.tick(11.0, BUSY)
    assert made is not None
    pool.pin({"max_batch_size": 40}, 12.0, "admin:test")
    with pytest.raises(ValueError, match="max_batch_size is pinned; unpin before"):
        pool.roll_back(made.id, 13.0, "admin:test")
    assert pool.setpoints.max_batch_size == 40


@pytest.mark.parametrize("what", ["shadow", "freeze", "experiment"])
def test_what_moved_no_knob_is_not_rolled_back_as_one(what: str) -> None:
    pool = controller()
    if what == "shadow":
        made = pool.set_shadow("fixed", {}, 1.0, "admin:test")
    elif what == "freeze":
        made = pool.freeze(True, 1.0, "admin:test")
    else:
        made = pool.start_experiment(Arm("aimd"), Arm("fixed"), 1.0, "admin:test")
    with pytest.raises(ValueError, match="did not move the setpoints"):
        pool.roll_back(made.id, 2.0, "admin:test")


def test_a_shadow_advises_and_turns_nothing() -> None:
    pool = controller(law="fixed", slo=SLO(e2e_s=1.0))
    pool.set_shadow("aimd", {}, 1.0, "admin:test")
    for _ in range(50):
        pool.observe(observation(5.0, done=10.0))
    pool.tick(11.0, BUSY)
    assert pool.setpoints.max_batch_size == 8
    assert pool.decisions.latest(1)[0].rule == "shadow.aimd.back_off"


def test_another_law_takes_over_where_the_last_one_left() -> None:
    pool = controller()
    pool.pin({"max_batch_size": 20}, 1.0, "admin:test")
    pool.unpin(["max_batch_size"], 2.0, "admin:test")
    pool.set_law("fixed", {}, 3.0, "admin:test")
    assert (pool.law_name, pool.setpoints.max_batch_size) == ("fixed", 20)
    with pytest.raises(ValueError, match="unknown law"):
        pool.set_law("magic", {}, 3.0, "admin:test")
    assert pool.law_name == "fixed"


def play_out(pool: PoolController, better: str) -> None:
    """Let an experiment run to its end, with more answers in time while `better` has its turn."""
    now = 0.0
    while pool.snapshot(now)["experiment"] is not None and now < 3000.0:
        now += 1.0
        for _ in range(6 if pool.law_name == better else 4 + int(now) % 2):
            pool.observe(observation(1.0, done=now, generation=pool.setpoints.generation))
        pool.tick(now, Load(app_limited=True))


def test_a_law_for_trials_is_never_given_a_pool_but_advises_and_takes_turns() -> None:
    pool = controller()
    with pytest.raises(ValueError, match=r"only takes part in trials.*accepted here: fixed, step, aimd"):
        pool.set_law("bandit", {}, 1.0, "admin:test")
    with pytest.raises(ValueError, match="trials"):
        pool.start_experiment(Arm("bandit"), Arm("aimd"), 1.0, "admin:test")
    pool.set_shadow("bandit", {}, 1.0, "admin:test")
    pool.start_experiment(Arm("aimd"), Arm("bandit"), 1.0, "admin:test")
    assert (pool.standing_law[0], pool.shadow_name) == ("aimd", "bandit")


def test_a_law_for_trials_that_wins_does_not_stay() -> None:
    pool = controller(law="fixed", slo=SLO(e2e_s=4.0))
    pool.start_experiment(Arm("fixed"), Arm("bandit"), 0.0, "admin:test", block_s=20.0, settle_s=5.0)
    play_out(pool, better="bandit")
    (end,) = pool.decisions.latest(1)
    assert (pool.law_name, end.rule) == ("fixed", "experiment.end")
    assert "fixed stays, for bandit, which kept more answers in time, is for trials only" in end.text


def test_while_two_laws_take_turns_the_first_one_stands() -> None:
    pool = controller(law="fixed")
    pool.start_experiment(Arm("aimd", {"least": 12}), Arm("step"), 0.0, "admin:test", block_s=20.0, settle_s=5.0)
    seen = set()
    for second in range(1, 60):
        pool.tick(float(second), Load())
        seen.add(pool.law_name)
        assert pool.standing_law == ("aimd", {"least": 12})
    assert seen == {"aimd", "step"}
    change = pool.set_law("gradient", {}, 60.0, "admin:test")
    assert change.old == {"law": "aimd", "options": {"least": 12}}
    assert pool.standing_law == ("gradient", {})


def test_an_experiment_takes_turns_and_ends_with_the_better_law() -> None:
    pool = controller(law="fixed", slo=SLO(e2e_s=4.0))
    pool.start_experiment(Arm("fixed"), Arm("aimd"), 0.0, "admin:test", block_s=20.0, settle_s=5.0)
    with pytest.raises(ValueError, match="running"):
        pool.start_experiment(Arm("fixed"), Arm("step"), 0.0, "admin:test")
    play_out(pool, better="aimd")
    assert pool.law_name == "aimd"
    assert pool.decisions.latest(1)[0].rule == "experiment.end"
    assert "stays" in pool.decisions.latest(1)[0].text


def test_a_stopped_experiment_goes_back_to_the_first_law() -> None:
    pool = controller(law="fixed")
    with pytest.raises(ValueError, match="no experiment"):
        pool.stop_experiment(0.0, "admin:test")
    pool.start_experiment(Arm("fixed"), Arm("aimd"), 0.0, "admin:test", seed=1)
    pool.stop_experiment(1.0, "admin:test")
    assert pool.law_name == "fixed"


def test_gate_dispatch_fills_the_free_places_only() -> None:
    pool = controller(size=4)
    jobs = [job(0.0)] * 10
    assert pool.choose(jobs, 1.0, Load(queued=10, inflight=1)).take == 3
    assert pool.choose(jobs, 1.0, Load(queued=10, inflight=4)).take == 0
    assert pool.choose(jobs, 1.0, Load(queued=10, inflight=9)).take == 0


def test_the_window_never_makes_a_request_late_and_ends_when_the_batch_is_full() -> None:
    pool = controller(slo=SLO(e2e_s=2.0), mode="merge", law="fixed", window_ms=90.0)
    assert pool.window_s(1.0, Load(queued=1)) == pytest.approx(0.09)
    assert pool.window_s(1.0, Load(queued=8)) == 0.0
    for index in range(40):
        pool.observe(observation(1.97, done=2.0 * index, batch=2))
    assert pool.window_s(1.0, Load(queued=1)) < 0.05


def test_a_lone_request_is_not_held_for_company_that_is_not_expected() -> None:
    pool = controller(mode="merge", law="fixed", window_ms=50.0)
    for second in range(1, 10):
        pool.admit(job(float(second)), float(second), Load())
        pool.tick(float(second), Load())
    assert pool.arrival_rate == pytest.approx(1.0)
    assert pool.window_s(10.0, Load(queued=1)) == 0.0
    for index in range(1000):
        pool.admit(job(10.0), 9.0 + index / 1000, Load())
    pool.tick(10.0, Load())
    assert pool.window_s(10.0, Load(queued=1)) == pytest.approx(0.05)


def test_the_snapshot_is_json_with_quantiles_counts_attainment_law_and_model() -> None:
    pool = controller(slo=SLO(e2e_s=10.0, ttft_s=1.0))
    for index in range(40):
        pool.observe(observation(4.0, done=float(index), first=0.5, tokens=30))
    snapshot = json.loads(json.dumps(pool.snapshot(40.0)))
    assert set(snapshot["quantiles"]) == {"ttft", "tpot", "e2e", "queue", "service"}
    assert snapshot["counts"]["ok"] == 40
    assert snapshot["attainment"]["ttft"]["verdict"] == "unproven"
    assert snapshot["model"]["samples"] == 40
    assert snapshot["law"]["name"] == "aimd"


@pytest.mark.parametrize(
    ("rule", "old", "new", "cut"),
    [
        ("merge.recognised", {"dispatch": "alone"}, {"dispatch": "merged"}, False),
        ("merge.undivided", {"dispatch": "merged"}, {"dispatch": "alone"}, False),
        ("merge.differs", {"dispatch": "merged"}, {"dispatch": "merged"}, True),
        ("admin.drain", {"draining": False}, {"draining": True}, True),
    ],
)
def test_what_was_dispatched_otherwise_is_no_evidence(
    rule: str, old: dict[str, Any], new: dict[str, Any], cut: bool
) -> None:
    """What went one by one to a server that takes one at a time was late; shared calls stayed small for it."""
    pool = controller(slo=SLO(e2e_s=0.4), law="deadline", size=16)
    decision = pool.note(10.0, "controller", rule, old, new, "Said elsewhere.")
    for index in range(40):
        pool.observe(observation(0.6, done=10.2 + index / 100, batch=9))
    pool.tick(11.0, Load())
    assert decision.rule == rule
    assert (pool.setpoints.max_batch_size < 16) is cut
    for index in range(40):
        sent = pool.setpoints.generation
        pool.observe(observation(0.6, done=12.0 + index / 100, batch=9, generation=sent))
    pool.tick(13.0, Load())
    assert pool.setpoints.max_batch_size < 16, "what was sent since counts"
