"""Compiles the request path: a copy of the source, mypyc, the C compiler, and the result into the environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path

from proxy.compiled.modules import MODULES, PACKAGES
from proxy.compiled.store import (
    CompiledUnavailable,
    build_folder,
    extension_files,
    prune,
    source_root,
)

__all__ = ["build", "why_not"]

_SCRIPT = Path(__file__).with_name("mypyc_script.py")
_TOO_LONG_S = 1800.0
_LAST_LINES = 12


def why_not() -> str | None:
    """Return what is missing to compile, in one sentence; None when all is there."""
    if find_spec("mypyc") is None or find_spec("setuptools") is None:
        return "mypyc is not installed; pip install 'trimtab[compile]' brings it"
    wanted = os.environ.get("CC")
    if not any(map(shutil.which, [wanted.split()[0]] if wanted else ["cc", "gcc", "clang"])):
        return f"there is no C compiler ({wanted or 'cc, gcc or clang'})"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "the headers of this Python are missing; the system's python3-dev package brings them"
    return None


def build(jobs: int) -> Path:
    """Compile the running source by `jobs` compilers at a time and return the folder of the build.

    One that is there already is not made again. Raises CompiledUnavailable.
    """
    folder = build_folder()
    if extension_files(folder):
        return folder
    missing = why_not()
    if missing is not None:
        raise CompiledUnavailable(missing)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="making-") as place:
            made = _compile(source_root(), Path(place), jobs)
            made.replace(folder)  # whole or not at all, whoever else is compiling
    except OSError as error:
        if not extension_files(folder):
            raise CompiledUnavailable(f"the environment cannot be written to: {error}") from error
    prune(folder)
    return folder


def _compile(root: Path, place: Path, jobs: int) -> Path:
    """Compile a copy of the packages in `root` below `place`; return the folder with nothing but the result."""
    source, made = place / "source", place / "made"
    for package in PACKAGES:
        shutil.copytree(root / package, source / package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    files = [str(Path(*name.split(".")).with_suffix(".py")) for name in MODULES]
    command = [sys.executable, str(_SCRIPT), str(jobs), *files]
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"MYPYPATH": "."}
    try:
        run = subprocess.run(
            command, cwd=source, env=environ, capture_output=True, text=True, timeout=_TOO_LONG_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CompiledUnavailable(f"compiling took longer than {_TOO_LONG_S:.0f} s") from error
    if run.returncode != 0:
        lines = "\n".join((run.stdout + run.stderr).strip().splitlines()[-_LAST_LINES:])
        raise CompiledUnavailable(f"mypyc failed:\n{lines}")
    shutil.rmtree(source / "build", ignore_errors=True)
    for file in extension_files(source).values():
        target = made / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    return made
