from __future__ import annotations

import logging
from pathlib import Path

import pytest

from proxy.config.model import LogConfig
from proxy.state.journal import JournalFile


def test_lines_are_appended_across_runs(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    for text in ("one\n", "two\n"):
        file = JournalFile.of(LogConfig(journal=str(path)))
        file.write(text)
        file.close()
        file.write("after the end\n")
    assert path.read_text() == "one\ntwo\n"


def test_a_full_journal_is_said_once_and_serving_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal.jsonl"
    file = JournalFile.of(LogConfig(journal=str(path), journal_max_mb=1))
    with caplog.at_level(logging.WARNING, "trimtab"):
        for _ in range(3):
            file.write("x" * 600_000 + "\n")
    assert path.stat().st_size == 600_001
    assert [record.message for record in caplog.records] == [
        f"the journal {path} is full (log.journal_max_mb); nothing more is written"
    ]


def test_a_journal_that_cannot_be_opened_names_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert JournalFile.of(LogConfig(journal=str(tmp_path / "nowhere" / "journal.jsonl"))) is None
    assert "log.journal: " in caplog.text
    assert "No such file or directory" in caplog.text
