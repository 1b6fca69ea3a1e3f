from __future__ import annotations

import json
from typing import Any

import pytest

from controller.load import Load
from controller.loop import PoolController
from controller.replay import JournalError, replay
from controller.setpoints import Bounds, Setpoints
from controller.simulator.merge import simulate_merge
from controller.simulator.scenarios import design_scenarios
from controller.slo import SLO
from controller.tune.experiment import Arm
from tests.controller.build import job, observation


def journaled(lines: list[str], **settings: Any) -> PoolController:
    given = {"slo": SLO(e2e_s=6.0), "law": "deadline", "mode": "merge"} | settings
    return PoolController(
        "pool", journal=lines.append, setpoints=Setpoints(8, 0.0), bounds=Bounds(1, 32), now=0.0, **given
    )


@pytest.mark.parametrize("law", ["deadline", "aimd", "gradient", "step", "bandit"])
def test_a_day_replayed_gives_every_verdict_batch_and_decision_again(law: str) -> None:
    day = next(cell for cell in design_scenarios(240.0) if cell.label == "overload @ 6 s")
    lines: list[str] = []
    pool = journaled(lines, law=law)
    simulate_merge(day.requests(0), pool, day.plant(), horizon_s=240.0, seed=0)
    again = replay(lines)["pool"]
    assert again.different == []
    assert again.calls["choose"] > 50
    assert [entry.text for entry in again.decisions] == [entry.text for entry in pool.decisions.since(0)]
    assert again.controller.setpoints == pool.setpoints


def test_what_operators_did_is_replayed_as_well() -> None:
    lines: list[str] = []
    pool = journaled(lines, class_slos={"batch": SLO(e2e_s=60.0)})
    pool.set_slo(SLO(e2e_s=5.0), 1.0, "admin:test")
    pool.set_slo(SLO(e2e_s=50.0), 1.0, "admin:test", "batch")
    pool.pin({"window_ms": 2.0}, 2.0, "admin:test")
    pool.unpin(["window_ms"], 3.0, "admin:test")
    pool.set_law("aimd", {"least": 12}, 4.0, "admin:test")
    pool.set_shadow("step", {}, 5.0, "admin:test")
    pool.start_experiment(Arm("aimd"), Arm("deadline"), 6.0, "admin:test", seed=3, block_s=10.0, settle_s=1.0)
    for second in range(7, 40):
        pool.observe(observation(1.0, done=float(second)))
        pool.tick(float(second), Load(queued=3, inflight=8, inflight_calls=1))
    pool.stop_experiment(41.0, "admin:test")
    pool.freeze(True, 42.0, "admin:test")
    again = replay(lines)["pool"]
    assert again.different == []
    assert again.controller.snapshot(43.0) == pool.snapshot(43.0)


def test_an_answer_that_differs_is_reported_with_its_line() -> None:
    lines: list[str] = []
    pool = journaled(lines)
    pool.admit(job(1.0), 1.0, Load())
    entry = json.loads(lines[-1])
    entry["answer"]["v"][0] = False
    lines[-1] = json.dumps(entry)
    ((number, call, then, now),) = replay(lines)["pool"].different
    assert (number, call, then["v"][0], now["v"][0]) == (2, "admit", False, True)


def test_a_journal_holds_no_request_ids() -> None:
    lines: list[str] = []
    pool = journaled(lines)
    named = job(1.0)
    named.id = "req-4711"
    pool.admit(named, 1.0, Load())
    pool.choose([named], 1.0, Load(queued=1))
    assert len(lines) == 3
    assert not any("4711" in line for line in lines)


def test_a_line_that_was_cut_off_at_the_end_is_left_out_and_any_other_is_an_error() -> None:
    lines: list[str] = []
    pool = journaled(lines)
    pool.admit(job(1.0), 1.0, Load())
    assert replay([*lines, lines[-1][:20]])["pool"].calls["admit"] == 1
    with pytest.raises(JournalError, match="line 2 is not of a journal"):
        replay([lines[0], "nonsense\n", lines[1]])
    with pytest.raises(JournalError, match="line 1"):
        replay(["nonsense\n"])


def test_a_restarted_proxy_goes_on_in_the_same_journal() -> None:
    lines: list[str] = []
    for _ in range(2):
        journaled(lines).admit(job(1.0), 1.0, Load())
    assert replay(lines)["pool"].calls["admit"] == 2
