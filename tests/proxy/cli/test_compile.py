"""`trimtab compile` says what it did, and what is missing where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import compile as cli
from proxy.cli import main
from proxy.compiled.build import why_not
from proxy.compiled.store import CompiledUnavailable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cli, "build_folder", lambda: tmp_path)
    return tmp_path


def test_check_tells_by_its_exit_code_whether_there_is_a_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = CliRunner().invoke(main, ["compile", "--check"])
    assert (missing.exit_code, "from source" in missing.output) == (1, True)
    monkeypatch.setattr(cli, "extension_files", lambda _: {"proxy.serving.flight": folder})
    there = CliRunner().invoke(main, ["compile", "--check"])
    assert (there.exit_code, there.output) == (0, "compiled\n")
    again = CliRunner().invoke(main, ["compile"])
    assert (again.exit_code, str(folder) in again.output) == (0, True)


def test_what_is_missing_is_said_and_fatal_unless_that_is_fine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(jobs: int) -> Path:
        raise CompiledUnavailable(f"there is no C compiler for {jobs} jobs")

    monkeypatch.setattr(cli, "build", build)
    refused = CliRunner().invoke(main, ["compile", "--jobs", "3"])
    assert refused.exit_code == 2
    assert "no C compiler for 3 jobs" in refused.stderr
    fine = CliRunner().invoke(main, ["compile", "--jobs", "3", "--if-possible"])
    assert fine.exit_code == 0
    assert "runs from source" in fine.output
    assert "no C compiler for 3 jobs" in fine.output


def test_a_compiler_that_is_named_and_not_there_is_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert "no-such-compiler" in (why_not() or "")
