"""Environments of peers: made once, made again when their pins change, and nothing pretends to be installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments
from benchmarks.compat.environments import ENVIRONMENTS
from benchmarks.environments import Environment, InstallFailed, install_all


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Pip's command lines, none of which is run: a script that succeeds stands in for the interpreter."""
    calls: list[list[str]] = []
    monkeypatch.setattr(environments, "CACHE", tmp_path)

    def run(argv: list[str], **more: Any) -> subprocess.CompletedProcess[bytes]:
        calls.append(argv)
        python = Path(argv[-1]) / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\necho Downloading x; echo chatter\nexit ${FAIL:-0}\n")
        python.chmod(0o755)
        return subprocess.CompletedProcess(argv, 0)

    monkeypatch.setattr(environments.subprocess, "run", run)
    return calls


def test_it_is_made_once(made: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    environment = Environment("peer", ("peer==1.0", "other==2"), unwanted=("junk",))
    assert not environment.installed
    assert install_all([environment, environment]) == []
    assert environment.installed
    assert len(made) == 1
    told = capsys.readouterr().err
    assert "peer==1.0 other==2" in told
    assert "Downloading x" in told
    assert "chatter" not in told


def test_other_pins_make_it_anew(made: list[list[str]]) -> None:
    Environment("peer", ("peer==1.0",)).install()
    newer = Environment("peer", ("peer==1.1",))
    assert not newer.installed
    newer.install()
    assert newer.installed
    assert len(made) == 2


def test_a_failed_install_is_told_and_is_not_taken_for_one(
    made: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "3")
    environment = Environment("peer", ("peer==1.0",))
    with pytest.raises(InstallFailed, match="peer"):
        environment.install()
    assert not environment.installed
    assert len(install_all([environment])) == 1


def test_every_peer_is_pinned() -> None:
    for environment in ENVIRONMENTS.values():
        assert "==" in environment.requirements[0], environment.name
        assert environment.version()[0].isdigit()
        assert environment.python == sys.executable or environment.name == "pytriton"
