"""A container's limit counts, whichever way its system says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.engine import machine
from backend.engine.machine import available_bytes, default_threads, usable_cores


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
        monkeypatch.setattr(machine, "usable_cores", lambda usable=usable: usable)
        assert default_threads() == threads


def _meminfo(tmp_path: Path, available_kib: int) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: 99999999 kB\nMemAvailable: {available_kib} kB\n")
    return path


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, 8 << 20),
        ({"memory.max": "max", "memory.current": "1048576"}, 8 << 20),
        ({"memory.max": "4194304", "memory.current": "1048576"}, 3 << 20),
        ({"memory.max": "1048576", "memory.current": "1048577"}, 0),
        ({"memory/memory.limit_in_bytes": "4194304", "memory/memory.usage_in_bytes": "1048576"}, 3 << 20),
        ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "1048576"}, 8 << 20),
    ],
)
def test_memory_is_what_the_machine_and_the_limit_leave(tmp_path: Path, files: dict[str, str], found: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert available_bytes(tmp_path, _meminfo(tmp_path, 8192)) == found


def test_without_any_file_free_memory_is_still_told(tmp_path: Path) -> None:
    assert available_bytes(tmp_path, tmp_path / "none") > 0
