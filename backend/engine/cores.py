"""How many cores this process may use."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["default_threads", "usable_cores"]

_CGROUP = Path("/sys/fs/cgroup")


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
