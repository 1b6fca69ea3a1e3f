"""The predictor's benchmark says what it lacks the data for, and measures the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bars import Bar
from benchmarks.predictor import __main__ as predictor
from benchmarks.predictor.made_up import made_up
from controller.predictor.calibration import kendall_tau


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part gives a bar of its file's name at once."""
    parts = {file: lambda path, quick: [Bar.above(path.name, 1.0, 1.0)] for file in predictor.PARTS}
    monkeypatch.setattr(predictor, "PARTS", parts)
    monkeypatch.setattr(predictor, "_costs", lambda data, quick: [Bar.above("costs", 1.0, 1.0)])
    monkeypatch.delenv("TRIMTAB_DATA", raising=False)


def test_without_data_the_costs_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    assert predictor.main([]) == 0
    told = capsys.readouterr().out
    for file in predictor.PARTS:
        assert f"left out: {file.partition('.')[0]}; it needs {file} in --data DIR" in told
    assert "costs" in told


def test_files_that_are_there_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *missing = predictor.PARTS
    (tmp_path / first).touch()
    assert predictor.main(["--data", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"{first} (>=)" in told
    assert [file for file in predictor.PARTS if f"it needs {file}" in told] == missing
    assert "left out of --quick" not in told


@pytest.mark.parametrize("quick", [[], ["--quick"]])
def test_a_quick_run_says_what_it_leaves_out(quick: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    predictor.main(quick)
    assert ("left out of --quick: " in capsys.readouterr().out) == bool(quick)


def test_made_up_answers_have_something_to_learn_from() -> None:
    answers = made_up()
    assert answers == made_up()
    assert len({answer.text for answer in answers}) == len({answer.prompt for answer in answers}) == 805
    assert kendall_tau([float(a.prompt_tokens) for a in answers], [float(a.tokens) for a in answers]) > 0.4
