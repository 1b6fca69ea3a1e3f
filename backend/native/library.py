"""Compiles kernels.c for this processor, once, into the user's cache, and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["COMPILER_VARIABLE", "load_library"]

COMPILER_VARIABLE = "TRIMTAB_CC"
"""Names the C compiler; empty means: use no native kernels."""

_SOURCE = Path(__file__).with_name("kernels.c")
_FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-std=gnu11", "-shared", "-fPIC")
_WIDE_FLAG = "-mprefer-vector-width=512"
"""Left out where the compiler or the processor does not know it."""
_COMPILE_S = 120.0

logger = logging.getLogger(__name__)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None, after one log line, where they cannot be had."""
    compiler = _find_compiler()
    if compiler is None:
        logger.info("no C compiler: running on plain torch; set %s to one for faster steps", COMPILER_VARIABLE)
        return None
    try:
        return ctypes.CDLL(str(_compiled(compiler, _cache_directory())))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the native kernels cannot be compiled or loaded, running on plain torch: %s", error)
        return None


def _find_compiler() -> str | None:
    wanted = os.environ.get(COMPILER_VARIABLE)
    if wanted is not None:
        return shutil.which(wanted) if wanted else None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def _cache_directory() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "trimtab" / "native"


def _compiled(compiler: str, directory: Path) -> Path:
    """Return the library for this source, compiler and processor, made now unless it is there."""
    source = _SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join((source, " ".join(_FLAGS).encode(), compiler.encode(), _processor()))).hexdigest()
    path = directory / f"kernels-{key[:16]}.so"
    if path.exists():
        return path
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=directory)
    except OSError:  # no home that can be written to: compile for this process alone
        directory = Path(tempfile.mkdtemp(prefix="trimtab-native-"))
        path, scratch = directory / path.name, tempfile.TemporaryDirectory(dir=directory)
    with scratch as place:
        made = Path(place) / path.name
        _compile(compiler, made)
        made.replace(path)  # whole or not at all, whoever else is compiling
    return path


def _compile(compiler: str, path: Path) -> None:
    base = [compiler, *_FLAGS, str(_SOURCE), "-o", str(path), "-lm"]
    wide = subprocess.run([*base, _WIDE_FLAG], capture_output=True, timeout=_COMPILE_S, check=False)
    if wide.returncode == 0:
        return
    plain = subprocess.run(base, capture_output=True, timeout=_COMPILE_S, check=False, text=True)
    if plain.returncode != 0:
        lines = plain.stderr.strip().splitlines() or ["no message"]
        raise OSError(f"{compiler} failed: {lines[0]}")


def _processor() -> bytes:
    """What -march=native depends on, as far as it can be told without asking the compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    features = dict.fromkeys(line for line in lines if line.startswith(wanted))
    return "\n".join((platform.machine(), platform.processor(), *features)).encode()
