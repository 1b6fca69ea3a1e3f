from __future__ import annotations

import json

from controller.decision import DecisionLog


def filled(count: int, capacity: int = 5) -> DecisionLog:
    log = DecisionLog(capacity, wall=lambda: 123.0)
    for index in range(count):
        log.add(at=float(index), pool="p", rule="r", law="l", old={"x": index}, new={"x": index + 1})
    return log


def test_ids_have_no_gaps_and_old_entries_fall_out() -> None:
    log = filled(8)
    assert [entry.id for entry in log.since(0)] == [4, 5, 6, 7, 8]
    assert [entry.id for entry in log.since(6)] == [7, 8]
    assert [entry.id for entry in log.latest(2)] == [8, 7]
    assert log.since(99) == []


def test_the_wall_clock_only_stamps() -> None:
    assert filled(1).latest(1)[0].wall == 123.0


def test_an_outcome_is_written_into_its_decision() -> None:
    log = filled(8)
    log.resolve(6, "it worked")
    log.resolve(1, "fell out")
    log.resolve(99, "never was")
    assert [entry.outcome for entry in log.since(0)] == ["", "", "it worked", "", ""]


def test_a_decision_is_ready_for_json() -> None:
    entry = json.loads(json.dumps(filled(1).latest(1)[0].as_dict()))
    assert (entry["old"], entry["new"], entry["actor"]) == ({"x": 0}, {"x": 1}, "controller")
