"""The half that decides, alone: told what was seen, it puts in force at a dispatcher what it decided."""

from __future__ import annotations

from typing import Any

import pytest

from controller.decision import Decision
from controller.dispatch.dispatcher import Dispatcher
from controller.load import Load
from controller.measure.promises import Promises
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.chosen_law import ChosenLaw
from controller.tune.experiment import Arm
from controller.tune.tuner import Tuner
from tests.controller.build import observation

HELD_BACK = Load(queued=9, inflight=8, inflight_calls=1)


def made(law: str = "aimd", slo: SLO | None = None, **options: Any) -> tuple[Dispatcher, Tuner]:
    chosen = ChosenLaw(law, options)
    promises = Promises(SLO(e2e_s=10.0) if slo is None else slo)
    dispatcher = Dispatcher("gate", promises, Setpoints(8, 0.0), chosen.terms, express_share=0.5, now=0.0)
    tuner = Tuner("pool", dispatcher, chosen, bounds=Bounds(1, 64, 0.0, 100.0), now=0.0, wall=lambda: 1.0e9)
    return dispatcher, tuner


def seen(tuner: Tuner, service_s: float, done: float, count: int = 40) -> None:
    for index in range(count):
        tuner.observe(observation(service_s, done=done + index / 1000.0, generation=0))


@pytest.mark.parametrize(
    ("service_s", "load", "direction"),
    [(30.0, HELD_BACK, -1), (1.0, HELD_BACK, 1), (1.0, Load(app_limited=True), 0)],
    ids=["late", "in time and held back", "in time and idle"],
)
def test_a_tick_moves_the_size_by_what_was_seen(service_s: float, load: Load, direction: int) -> None:
    dispatcher, tuner = made()
    seen(tuner, service_s, 40.0)
    decision = tuner.tick(41.0, load, cap_bound=False)
    moved = dispatcher.setpoints.max_batch_size - 8
    assert (moved > 0) - (moved < 0) == direction
    assert (decision is None) == (direction == 0)
    assert dispatcher.setpoints.generation == abs(direction)


def test_work_that_the_cap_held_back_counts_as_held_back() -> None:
    dispatcher, tuner = made()
    seen(tuner, 1.0, 40.0)
    tuner.tick(41.0, Load(app_limited=True), cap_bound=True)
    assert dispatcher.setpoints.max_batch_size > 8


def test_missed_targets_are_told_and_counted() -> None:
    _, tuner = made()
    assert tuner.observe(observation(30.0, done=40.0)) == ("e2e",)
    assert tuner.observe(observation(1.0, done=41.0)) == ()
    counts = tuner.record.window.counts(41.0)
    assert (counts["ok"], counts["late"]) == (2, 1)


CHANGES: dict[str, tuple[Any, str]] = {
    "slo": (lambda tuner: tuner.set_slo(SLO(e2e_s=5.0), 1.0, "admin:a"), "admin.slo"),
    "pin": (lambda tuner: tuner.pin({"max_batch_size": 3}, 1.0, "admin:a"), "admin.pin"),
    "unpin": (lambda tuner: tuner.unpin(None, 1.0, "admin:a"), "admin.unpin"),
    "law": (lambda tuner: tuner.set_law("step", {}, 1.0, "admin:a"), "admin.law"),
    "shadow": (lambda tuner: tuner.set_shadow("step", {}, 1.0, "admin:a"), "admin.shadow"),
    "freeze": (lambda tuner: tuner.freeze(True, 1.0, "admin:a"), "admin.freeze"),
    "trial": (lambda tuner: tuner.start_experiment(Arm("aimd"), Arm("step"), 1.0, "admin:a"), "experiment.start"),
}


@pytest.mark.parametrize(("change", "rule"), CHANGES.values(), ids=list(CHANGES))
def test_every_change_of_an_operator_is_one_decision_with_who_made_it(change: Any, rule: str) -> None:
    _, tuner = made()
    decision: Decision = change(tuner)
    assert (decision.rule, decision.actor) == (rule, "admin:a")
    assert decision.text.startswith("admin:a ")
    assert tuner.decisions.since(0) == [decision]


def test_what_is_decided_is_in_force_at_the_dispatcher_at_once() -> None:
    dispatcher, tuner = made()
    tuner.set_slo(SLO(e2e_s=5.0), 1.0, "admin:a")
    tuner.set_slo(SLO(e2e_s=50.0), 1.0, "admin:a", "batch")
    tuner.pin({"max_batch_size": 3, "window_ms": 20}, 1.0, "admin:a")
    assert (dispatcher.promises.pool, dispatcher.promises.of("batch")) == (SLO(e2e_s=5.0), SLO(e2e_s=50.0))
    assert (dispatcher.setpoints.max_batch_size, dispatcher.setpoints.window_ms) == (3, 20)


@pytest.mark.parametrize("hold", ["pin", "freeze"])
def test_what_an_operator_holds_no_law_moves(hold: str) -> None:
    dispatcher, tuner = made()
    if hold == "pin":
        tuner.pin({"max_batch_size": 8}, 1.0, "admin:a")
    else:
        tuner.freeze(True, 1.0, "admin:a")
    seen(tuner, 30.0, 40.0)
    assert tuner.tick(41.0, HELD_BACK, cap_bound=False) is None
    assert dispatcher.setpoints.max_batch_size == 8


def test_a_move_of_the_law_can_be_rolled_back() -> None:
    dispatcher, tuner = made()
    seen(tuner, 30.0, 40.0)
    decision = tuner.tick(41.0, HELD_BACK, cap_bound=False)
    assert decision is not None
    tuner.roll_back(decision.id, 42.0, "admin:a")
    assert dispatcher.setpoints == Setpoints(8, 0.0, 2)
    with pytest.raises(ValueError, match="is not kept"):
        tuner.roll_back(99, 42.0, "admin:a")


def test_a_shadow_advises_and_turns_nothing() -> None:
    dispatcher, tuner = made("fixed")
    tuner.set_shadow("aimd", {}, 1.0, "admin:a")
    seen(tuner, 30.0, 40.0)
    tuner.tick(41.0, HELD_BACK, cap_bound=False)
    assert tuner.decisions.latest(1)[0].rule.startswith("shadow.aimd")
    assert dispatcher.setpoints.max_batch_size == 8


def test_the_law_an_experiment_began_with_stands_and_comes_back() -> None:
    _, tuner = made("fixed")
    tuner.start_experiment(Arm("aimd"), Arm("bandit"), 1.0, "admin:a", block_s=10.0, settle_s=1.0)
    laws = set()
    for second in range(2, 40):
        tuner.tick(float(second), Load(), cap_bound=False)
        laws.add(tuner.chosen.name)
        assert tuner.standing_law.name == "aimd"
    tuner.stop_experiment(40.0, "admin:a")
    assert laws == {"aimd", "bandit"}
    assert tuner.chosen.name == "aimd"
    with pytest.raises(ValueError, match="no experiment is running"):
        tuner.stop_experiment(41.0, "admin:a")


def test_without_a_limit_the_law_holds_and_says_so_once() -> None:
    _, tuner = made(slo=SLO())
    decisions = [tuner.tick(float(second), HELD_BACK, cap_bound=False) for second in (1, 2)]
    assert decisions[0] is not None
    assert (decisions[0].rule, decisions[1]) == ("hold", None)
