"""`trimtab simulate` hands its words to the simulator and passes its exit code on."""

from __future__ import annotations

from click.testing import CliRunner

from proxy.cli import main


def test_a_day_is_played_under_every_law_named() -> None:
    done = CliRunner().invoke(main, ["simulate", "--law", "deadline,step", "--duration", "30"])
    assert done.exit_code == 0
    assert "deadline" in done.output
    assert "step" in done.output


def test_its_help_is_the_simulators_own() -> None:
    done = CliRunner().invoke(main, ["simulate", "--help"])
    assert done.exit_code == 0
    assert "--from-log" in done.output


def test_an_unknown_law_is_named_and_refused() -> None:
    done = CliRunner().invoke(main, ["simulate", "--law", "pid"])
    assert done.exit_code == 2
    assert "pid" in done.output
