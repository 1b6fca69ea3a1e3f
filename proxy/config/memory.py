"""How much memory this process may use: what its control groups allow, else what there is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["allowed_bytes"]

_PROC = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


def allowed_bytes(proc: Path = _PROC, root: Path = _ROOT) -> int:
    """Return the least of physical memory and the limits of the control groups, version 1 or 2, that we are in."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _limit_files(proc, root):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) > 0:
            limits.append(int(text))
    return min(limits)


def _limit_files(proc: Path, root: Path) -> Iterator[Path]:
    """Yield where limits may stand: the group's own and its parents', each of which holds.

    Inside a container the group's path may be the host's, while its own group is mounted as the root.
    """
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers == "":
            base, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(name.strip("/"))
        for place in (group, *group.parents):
            yield base / place / file
