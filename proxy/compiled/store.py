"""Where builds are kept, and which of them fits the source that is running."""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from proxy.compiled.modules import PACKAGES

__all__ = [
    "CompiledUnavailable",
    "build_folder",
    "builds_folder",
    "extension_files",
    "fingerprint",
    "prune",
    "source_root",
]

_KEPT = 3
"""So many builds are kept: a checkout that goes back and forth between branches finds its own again."""


class CompiledUnavailable(Exception):
    """There is no build to use, or none can be made; the message says why and what would help."""


def source_root() -> Path:
    """Return the folder that holds the packages this process runs from."""
    return Path(__file__).resolve().parents[2]


def builds_folder() -> Path:
    """Return where this environment keeps its builds; they go when it goes."""
    return Path(sys.prefix) / "share" / "trimtab" / "compiled"


def fingerprint(root: Path) -> str:
    """Return the name of the build that fits the source in `root`, this interpreter and this machine.

    All of the packages count and not only what is compiled: compiled code takes the types of the rest for granted.
    """
    abi = (sysconfig.get_config_var("EXT_SUFFIX"), platform.machine(), *platform.libc_ver())
    found = hashlib.sha256(" ".join(abi).encode())
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            found.update(f"\0{path.relative_to(root)}\0".encode())
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def build_folder() -> Path:
    """Return where the build for the running source is, or would be."""
    return builds_folder() / fingerprint(source_root())


def extension_files(folder: Path) -> dict[str, Path]:
    """Return the extension modules in `folder` by their dotted names."""
    suffix: str = sysconfig.get_config_var("EXT_SUFFIX")
    files = sorted(folder.rglob(f"*{suffix}"))
    return {".".join(file.relative_to(folder).parts).removesuffix(suffix): file for file in files}


def prune(keep: Path) -> None:
    """Remove all builds but the latest few and `keep`."""
    builds = [path for path in keep.parent.iterdir() if path.is_dir() and path != keep]
    builds.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in builds[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
