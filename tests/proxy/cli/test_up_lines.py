"""What `trimtab up` prints beside what the worker says: one line at a time, and no alarm while the model loads."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from proxy.cli.up import _BesideProgress, _own_name, _Progress


def record(name: str, level: int) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, "upstream http://127.0.0.1:1 is down", None, None)


@pytest.mark.parametrize(
    ("loading", "name", "level", "shown"),
    [
        (True, "trimtab.proxy", logging.WARNING, False),
        (True, "trimtab.proxy", logging.INFO, False),
        (True, "trimtab.proxy", logging.ERROR, True),
        (True, "trimtab", logging.INFO, True),
        (False, "trimtab.proxy", logging.WARNING, True),
    ],
)
def test_a_worker_that_is_not_well_is_news_only_once_it_has_loaded(
    loading: bool, name: str, level: int, shown: bool
) -> None:
    beside = _BesideProgress(_Progress())
    beside.loading = loading
    assert beside.filter(record(name, level)) is shown


def test_a_log_line_ends_the_rewritten_line_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    progress = _Progress()
    progress.line("loading the model:  10%")
    assert not capsys.readouterr().err.endswith("\n")
    _BesideProgress(progress).filter(record("trimtab", logging.INFO))
    assert capsys.readouterr().err == "\n"


@pytest.mark.parametrize(
    ("started_as", "on_path", "printed"),
    [
        ("/elsewhere/bin/trimtab", True, "trimtab"),
        ("{here}/.venv/bin/trimtab", False, ".venv/bin/trimtab"),
        (".venv/bin/trimtab", False, ".venv/bin/trimtab"),
        ("/elsewhere/bin/trimtab", False, "/elsewhere/bin/trimtab"),
        ("/elsewhere/proxy/cli/__main__.py", False, "trimtab"),
    ],
)
def test_the_printed_command_is_one_that_this_shell_finds(
    started_as: str, on_path: bool, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started_as.format(here=tmp_path)])
    monkeypatch.setattr("proxy.cli.up.shutil.which", lambda _: started_as if on_path else None)
    assert _own_name() == printed
