"""The kernels are compiled once for each processor, quietly, and the worker does without where that fails."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from backend.native import library

COMPILER = pytest.mark.skipif(library._find_compiler() is None, reason="no C compiler")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where libraries are kept in this test, with a source that takes no time to compile."""
    source = tmp_path / "small.c"
    source.write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(library, "_SOURCES", (source,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    return tmp_path / "cache" / "trimtab" / "native"


def _load() -> ctypes.CDLL | None:
    return library.load_library.__wrapped__()


def _answer() -> int:
    loaded = _load()
    assert loaded is not None
    return int(loaded.answer())


def _compiler(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


@COMPILER
def test_the_library_is_compiled_once_silently_and_then_found(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    assert _answer() == 42
    (made,) = cache.iterdir()
    before = made.stat().st_mtime_ns
    assert _answer() == 42
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [before]
    assert caplog.records == []


@COMPILER
def test_processes_that_start_at_once_all_get_a_whole_library(cache: Path) -> None:
    code = (
        "import pathlib, sys; from backend.native import library; library._SOURCES = (pathlib.Path(sys.argv[1]),); "
        "print('there', flush=True); sys.stdin.readline(); print(library.load_library().answer())"
    )
    argv = [sys.executable, "-c", code, str(library._SOURCES[0])]
    starting = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ})
        for _ in range(4)
    ]
    for process in starting:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
    for process in starting:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in starting] == ["42\n"] * 4
    assert len(list(cache.iterdir())) == 1


@COMPILER
def test_a_cache_that_cannot_be_written_is_done_without(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache.parent.parent.write_text("a file where the directory would be")
    assert _answer() == 42
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    assert caplog.records == []


@COMPILER
def test_a_user_without_a_home_is_served_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    assert _answer() == 42


@COMPILER
def test_a_library_that_was_cut_short_is_made_again(cache: Path) -> None:
    cache.mkdir(parents=True)
    short = cache / f"kernels-{library._key(library._find_compiler() or '')}.so"
    short.write_bytes(b"\x7fELF")
    assert _answer() == 42
    assert list(cache.iterdir()) == [short]
    assert short.stat().st_size > 4


@COMPILER
def test_another_source_or_processor_has_a_library_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _answer() == 42
    library._SOURCES[0].write_text("int answer(void) { return 43; }\n")
    assert _answer() == 43
    monkeypatch.setattr(library, "_processor", lambda: b"another")
    assert _answer() == 43
    assert len(list(cache.iterdir())) == 3


@COMPILER
def test_a_compiler_without_the_flag_for_wide_vectors_will_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = library._find_compiler()
    script = f'case "$*" in *prefer-vector*) exit 1;; esac\nexec {real} "$@"'
    monkeypatch.setenv(library.COMPILER_VARIABLE, _compiler(tmp_path / "old-cc", script))
    assert _answer() == 42


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "TRIMTAB_CC is empty"), ("no-such-cc", "TRIMTAB_CC names no program: 'no-such-cc'")],
)
def test_no_compiler_is_said_in_one_line(
    name: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(library.COMPILER_VARIABLE, name)
    assert _load() is None
    assert caplog.messages == [f"{reason}: running on plain torch"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'no such target' >&2; exit 1", "no such target"),
        ("exit 1", "no message"),
        ("exit 0", "No such file"),  # says that it succeeded, and made nothing
        ("exec tail -f /dev/null", "timed out"),
    ],
)
def test_a_compiler_that_fails_is_reported_in_one_line_and_done_without(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    script: str,
    reason: str,
) -> None:
    monkeypatch.setenv(library.COMPILER_VARIABLE, _compiler(tmp_path / "cc", script))
    monkeypatch.setattr(library, "_COMPILE_S", 0.5 if "tail" in script else 60.0)
    assert _load() is None
    (message,) = caplog.messages
    assert reason in message
    assert "\n" not in message
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
