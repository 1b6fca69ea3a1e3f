"""Every option of `trimtab simulate` says what it is for, and a wrong value what would be right."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from controller.simulator.cli import main
from controller.simulator.options import Span, parser


def options() -> list[argparse.Action]:
    return [action for action in parser()._actions if action.dest != "help"]


def test_every_option_has_help_and_every_default_is_shown() -> None:
    shown = parser().format_help()
    for action in options():
        assert action.help, action.option_strings
        assert action.option_strings[0] in shown
        if action.default not in (None, False):
            assert f"(default: {action.default})" in " ".join(shown.split()), action.option_strings


def test_defaults_pass_their_own_checks() -> None:
    found = parser().parse_args([])
    assert found.law == ["deadline", "aimd", "step"]
    assert (found.duration, found.size, found.quantile) == (600.0, 8, 0.99)


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("--rate 0", "above 0"),
        ("--rate nan", "'nan' is not a number"),
        ("--duration -1", "above 0"),
        ("--speed 0", "above 0"),
        ("--cv x", "'x' is not a number"),
        ("--prompt-tokens 0", "at least 1"),
        ("--output-tokens 1.5", "'1.5' is not a whole number"),
        ("--slots 0", "at least 1"),
        ("--knee-at 0", "at least 1"),
        ("--window-ms -1", "at least 0"),
        ("--quantile 99", "in [0.5, 1)"),
        ("--slo-ttft-ms 0", "above 0"),
        ("--size 9 --max-size 8", "at most --max-size, 8"),
        ("--slow 5", "FROM:TO:FACTOR in seconds, as in 120:180:4"),
        ("--slow 5:2:2", "end after it starts and its factor be above 0"),
        ("--slow 1:2:0", "its factor be above 0"),
        ("--fail 1:2:3", "FROM:TO in seconds, as in 120:180"),
        ("--fail 1:inf", "end after it starts"),
        ("--law pid", "known are aimd, bandit, deadline, fixed, gradient, step"),
        ("--law ,", "name at least one of"),
        ("--rat 3", "unrecognized arguments: --rat 3"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_that_says_what_is_right(
    capsys: pytest.CaptureFixture[str], words: str, right: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert right in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("--trace nowhere.csv", "--trace: there is no file nowhere.csv"),
        ("--from-log .", "--from-log: there is no file ."),
        ("--json nowhere/x.json", "--json: nowhere/x.json cannot be written"),
        ("--plot .", "it is a folder"),
    ],
)
def test_files_are_looked_at_before_the_day_is_played(
    capsys: pytest.CaptureFixture[str], words: str, right: str
) -> None:
    assert main(["--duration", "1e9", *words.split()]) == 2
    assert right in capsys.readouterr().err


def test_a_day_on_which_nobody_comes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rate", "0.001", "--duration", "1"]) == 2
    assert "raise --duration or --rate" in capsys.readouterr().err


def test_one_source_of_traffic_excludes_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "day.csv"
    file.write_text("t_s\n0\n")
    with pytest.raises(SystemExit):
        main(["--trace", str(file), "--from-log", str(file)])
    assert "not allowed with" in capsys.readouterr().err


def test_spans_may_be_repeated() -> None:
    found = parser().parse_args(["--slow", "1:2:3", "--slow", "4:5:6", "--fail", "7:8"])
    assert found.slow == [Span(1.0, 2.0, 3.0), Span(4.0, 5.0, 6.0)]
    assert found.fail == [Span(7.0, 8.0)]
