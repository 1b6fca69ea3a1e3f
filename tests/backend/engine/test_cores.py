"""A container's limit counts, whichever way its system says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.engine import cores
from backend.engine.cores import default_threads, usable_cores


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def _version_1(cgroup: Path, quota: str) -> None:
    (cgroup / "cpu").mkdir()
    (cgroup / "cpu" / "cpu.cfs_quota_us").write_text(quota + "\n")
    (cgroup / "cpu" / "cpu.cfs_period_us").write_text("100000\n")


@pytest.mark.parametrize(
    ("limit", "found"),
    [("max 100000", 8), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8)],
)
def test_the_limit_of_version_2(tmp_path: Path, limit: str, found: int) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n")
    assert usable_cores(tmp_path) == found


@pytest.mark.parametrize(("quota", "found"), [("-1", 8), ("300000", 3)])
def test_the_limit_of_version_1(tmp_path: Path, quota: str, found: int) -> None:
    _version_1(tmp_path, quota)
    assert usable_cores(tmp_path) == found


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 8


def test_one_core_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for usable, threads in ((1, 1), (2, 1), (8, 7)):
        monkeypatch.setattr(cores, "usable_cores", lambda usable=usable: usable)
        assert default_threads() == threads
