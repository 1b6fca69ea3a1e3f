"""How many cores and how much memory this process may use: the machine's, or its container's."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["available_bytes", "default_threads", "usable_cores"]

_MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
_CGROUP, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/meminfo")


def default_threads() -> int:
    """One thread less than the cores this process may use.

    A spinning barrier on a core that somebody else is using costs several times what the extra thread brings.
    """
    return max(1, usable_cores() - 1)


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Whole cores that affinity and the quota of the control group leave, at least 1.

    A container with a limit of two cores sees all of its machine's, and threads that spin would use its quota up.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Cores' worth of time in each period, of version 2 or version 1 of control groups; None without a limit."""
    with contextlib.suppress(OSError, ValueError):  # not there, or "max": no limit
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        allowed = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        of = int((cgroup / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return allowed / of if allowed > 0 else None
    return None


def available_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Main memory that can be taken without pushing anybody out, as far as the system tells."""
    # The free pages alone are a safe lower bound where /proc is restricted or not there.
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, KeyError, ValueError):
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    left = _left_of_limit(cgroup)
    return available if left is None else min(available, left)


def _left_of_limit(cgroup: Path) -> int | None:
    """What a control group's limit leaves, of version 2 or 1; None without a limit."""
    for limit, used in _MEMORY_FILES:
        with contextlib.suppress(OSError, ValueError):  # not there, or "max": no limit
            most, taken = (int((cgroup / name).read_text(encoding="ascii")) for name in (limit, used))
            return max(0, most - taken)
    return None
