"""The simulator drives the live objects, deterministically, and reproduces what is known about the laws."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from controller.loop import PoolController
from controller.observation import Result
from controller.simulator.arrivals import Request, read_trace, speed_up
from controller.simulator.cli import main
from controller.simulator.engine import EnginePlant
from controller.simulator.plants import BatchPlant, Faults, TablePlant
from controller.simulator.record import Record
from controller.simulator.run import LawSpec, play, play_engine
from controller.simulator.scenarios import design_scenarios, fresh_scenarios
from controller.slo import SLO
from tests.controller.build import mislead

DAYS = {scenario.label: scenario for scenario in design_scenarios(300.0)}
FRESH = {scenario.label: scenario for scenario in fresh_scenarios(300.0)}


def run(label: str, law: LawSpec, seed: int = 0) -> Record:
    day = DAYS.get(label) or FRESH[label]
    return play(law, day.requests(seed), day.plant(), SLO(e2e_s=day.slo_s), horizon_s=day.horizon_s, seed=seed)


def test_every_request_ends_exactly_once_and_runs_are_deterministic() -> None:
    one, two = (run("bursts @ 6 s", LawSpec("deadline")) for _ in range(2))
    assert one.fates == two.fates
    assert len(one.fates) == len(DAYS["bursts @ 6 s"].requests(0))


def test_without_admission_the_published_rule_collapses_under_overload() -> None:
    published = run("overload @ 6 s", LawSpec("step", options={"admission": False})).figures()
    deadline = run("overload @ 6 s", LawSpec("deadline")).figures()
    assert deadline.goodput >= 3.0 * published.goodput
    assert deadline.late_share <= 0.025


@pytest.mark.parametrize(
    ("label", "share"),
    [
        ("overload @ 6 s", 0.97),
        ("bursts @ 2.5 s", 1.0),
        ("bursts @ 6 s, knee", 0.95),
        ("waves @ 5 s, random lengths", 0.95),
    ],
)
def test_forming_by_deadline_keeps_up_with_the_static_oracle(label: str, share: float) -> None:
    fixed = [LawSpec("fixed", size=size) for size in (4, 8, 16, 20, 24)]
    oracle = max(run(label, law).figures().goodput for law in fixed)
    assert run(label, LawSpec("deadline")).figures().goodput >= share * oracle


@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_an_estimate_off_by_ten_heals_without_a_lock_out(factor: float) -> None:
    day = DAYS["steady 70 % @ 6 s"]
    corrupted: list[float] = []

    def corrupt(now: float, controller: PoolController) -> None:
        if now >= 120.0 and not corrupted:
            corrupted.append(now)
            mislead(controller, factor)

    healthy = run(day.label, LawSpec("deadline"))
    record = play(
        LawSpec("deadline"),
        day.requests(0),
        day.plant(),
        SLO(e2e_s=6.0),
        horizon_s=day.horizon_s,
        seed=0,
        on_tick=corrupt,
    )
    after, usual = record.figures(135.0, 300.0), healthy.figures(135.0, 300.0)
    assert after.goodput >= 0.9 * usual.goodput


def test_a_failing_upstream_is_counted_apart_and_traffic_comes_back() -> None:
    day = DAYS["steady 46 % @ 6 s"]
    plant = BatchPlant(faults=Faults(failing=((60.0, 63.0),)))
    record = play(LawSpec("deadline"), day.requests(0), plant, SLO(e2e_s=6.0), horizon_s=300.0, seed=0)
    assert 0 < sum(fate.result is Result.FAILED for fate in record.fates) < 40
    assert record.figures(75.0, 300.0).goodput > 2.8


def test_frozen_metrics_do_not_break_the_loop() -> None:
    day = DAYS["steady 70 % @ 6 s"]
    plant = BatchPlant(faults=Faults(frozen_metrics=((60.0, 65.0),)))
    record = play(LawSpec("deadline"), day.requests(0), plant, SLO(e2e_s=6.0), horizon_s=300.0, seed=0)
    assert record.figures().goodput > 4.0


def test_an_engine_gated_by_what_it_holds_beats_the_ungated_one_under_overload() -> None:
    plant = EnginePlant(kv_tokens=20_000)
    requests = [Request(index / 8.0, 800, 120) for index in range(8 * 120)]
    slo = SLO(ttft_s=3.0, tpot_s=0.08)
    gated = play_engine(LawSpec("deadline", highest=256), requests, plant, slo, horizon_s=120.0, seed=0)
    free = LawSpec("fixed", size=256, highest=256, options={"admission": False})
    ungated = play_engine(free, requests, plant, slo, horizon_s=120.0, seed=0)
    assert gated.figures().goodput >= 1.15 * ungated.figures().goodput


def test_a_plant_fitted_from_calls_predicts_them() -> None:
    samples = [(size, 1.0 + 0.1 * size) for size in (1, 2, 4, 8, 16) for _ in range(5)]
    plant = TablePlant.fit(samples)
    assert plant.seconds == pytest.approx((1.1, 1.2, 1.4, 1.8, 2.6))
    with pytest.raises(ValueError, match="ten calls"):
        TablePlant.fit(samples[:5])


def test_traces_are_read_from_csv_and_json_lines_gzipped_or_not(tmp_path: Path) -> None:
    table = tmp_path / "t.csv.gz"
    with gzip.open(table, "wt") as out:
        out.write("t_s,context_tokens,generated_tokens\n5.0,100,10\n6.5,200,20\n")
    lines = tmp_path / "access.jsonl"
    lines.write_text('{"arrival": 5.0, "prompt_tokens": 100, "output_tokens": 10}\n{"arrival": 6.5}\n')
    first = read_trace(table)
    assert [(r.arrival, r.prompt_tokens, r.output_tokens) for r in first] == [(0.0, 100, 10), (1.5, 200, 20)]
    assert [r.output_tokens for r in read_trace(lines)] == [10, 100]
    assert speed_up(first, 3.0)[1].arrival == pytest.approx(0.5)


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("hello\n")
    with pytest.raises(ValueError, match=r"bad\.jsonl, line 1"):
        read_trace(bad)
    untimed = tmp_path / "untimed.csv"
    untimed.write_text("prompt_tokens\n5\n")
    with pytest.raises(ValueError, match="no arrival time"):
        read_trace(untimed)


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main(["--rate", "4", "--duration", "60", "--law", "deadline,step", "--json", str(out)]) == 0
    assert "deadline" in capsys.readouterr().out
    data = json.loads(out.read_text())
    assert set(data) == {"deadline", "step"}
    assert data["deadline"]["offered"] > 150
