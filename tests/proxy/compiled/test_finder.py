"""Compiled modules are used where they fit, and never half."""

from __future__ import annotations

import logging
import sys
import sysconfig
from pathlib import Path

import pytest

from proxy.compiled import CompiledUnavailable, activate, is_active
from proxy.compiled.finder import VARIABLE

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

pytestmark = pytest.mark.skipif(is_active(), reason="this process has chosen already")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    (tmp_path / f"abc__mypyc{SUFFIX}").write_bytes(b"not an ELF file")
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy" / f"nowhere{SUFFIX}").write_bytes(b"nor this")
    return tmp_path


def test_without_a_build_the_source_runs(tmp_path: Path) -> None:
    assert not activate({}, tmp_path)
    assert not is_active()


def test_who_insists_on_a_build_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(CompiledUnavailable, match="trimtab compile"):
        activate({VARIABLE: "1"}, tmp_path)


def test_a_build_can_be_left_aside(broken: Path) -> None:
    assert not activate({VARIABLE: "0"}, broken)


@pytest.mark.parametrize("value", ["yes", "2", " "])
def test_other_values_are_refused_with_those_that_are_known(value: str, tmp_path: Path) -> None:
    with pytest.raises(CompiledUnavailable, match=r"0 \(run from source\) or 1"):
        activate({VARIABLE: value}, tmp_path)


def test_what_cannot_be_loaded_is_said_and_the_source_runs(broken: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = list(sys.meta_path)
    with caplog.at_level(logging.WARNING):
        assert not activate({}, broken)
    assert "running from source" in caplog.text
    assert sys.meta_path == before
    with pytest.raises(CompiledUnavailable, match="cannot be loaded"):
        activate({VARIABLE: "1"}, broken)


def test_a_process_never_runs_half_of_it(tmp_path: Path) -> None:
    (tmp_path / f"abc__mypyc{SUFFIX}").write_bytes(b"")
    (tmp_path / "proxy").mkdir()
    (tmp_path / "proxy" / f"compiled{SUFFIX}").write_bytes(b"")
    with pytest.raises(CompiledUnavailable, match=r"proxy\.compiled .* from source already"):
        activate({VARIABLE: "1"}, tmp_path)
