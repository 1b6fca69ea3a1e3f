"""Compiles the C sources for this processor, once, into the user's cache, and loads it."""

from __future__ import annotations

import contextlib
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

_SOURCES = tuple(Path(__file__).with_name(name) for name in ("rows.c", "cache.c", "strips.c", "tiles.c", "team.c"))
_HEADERS = tuple(Path(__file__).with_name(name) for name in ("lanes.h", "kernels.h"))
_FLAGS = ("-O3", "-march=native", "-fopenmp-simd", "-std=gnu11", "-shared", "-fPIC", "-pthread")
_WIDE_FLAG = "-mprefer-vector-width=512"
"""Left out where the compiler or the processor does not know it."""
_COMPILE_S = 120.0

logger = logging.getLogger(__name__)


class _CompileError(subprocess.SubprocessError):
    """The compiler refused the source; another directory would not help."""


@functools.cache
def load_library() -> ctypes.CDLL | None:
    """Return the compiled kernels, or None, after one log line, where they cannot be had."""
    compiler = _find_compiler()
    if compiler is None:
        logger.info("%s: running on plain torch", _why_no_compiler())
        return None
    try:
        return _load(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("the native kernels cannot be compiled or loaded, running on plain torch: %s", error)
        return None


def _find_compiler() -> str | None:
    wanted = os.environ.get(COMPILER_VARIABLE)
    if wanted is not None:
        return shutil.which(wanted) if wanted else None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def _why_no_compiler() -> str:
    wanted = os.environ.get(COMPILER_VARIABLE)
    if wanted is None:
        return f"no C compiler (cc, gcc or clang, or what {COMPILER_VARIABLE} names) for faster steps"
    return f"{COMPILER_VARIABLE} names no program: {wanted!r}" if wanted else f"{COMPILER_VARIABLE} is empty"


def _load(compiler: str) -> ctypes.CDLL:
    """Load the library from the user's cache, compiling it first unless it is there and whole.

    Where there is no cache to write to, or nothing in it can be executed, the library is made for this process alone.
    Raises OSError and SubprocessError.
    """
    name = f"kernels-{_key(compiler)}.so"
    directory = _cache_directory()
    if directory is not None:
        # One that is there may have been cut short by a full disk; what cannot be loaded is made anew.
        with contextlib.suppress(OSError):
            return ctypes.CDLL(str(directory / name))
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=directory) as place:
                made = Path(place) / name
                _compile(compiler, made)
                made.replace(directory / name)  # whole or not at all, whoever else is compiling
            return ctypes.CDLL(str(directory / name))
    with tempfile.TemporaryDirectory(prefix="trimtab-native-") as place:
        made = Path(place) / name
        _compile(compiler, made)
        return ctypes.CDLL(str(made))  # stays mapped when its file is gone


def _cache_directory() -> Path | None:
    """Where the libraries of this user are kept; None for a user without a home."""
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "trimtab" / "native"


def _key(compiler: str) -> str:
    """What a library depends on, so that a home that several machines share holds one for each."""
    parts = (
        *(source.read_bytes() for source in (*_SOURCES, *_HEADERS)),
        " ".join(_FLAGS).encode(),
        compiler.encode(),
        _processor(),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(compiler: str, path: Path) -> None:
    base = [compiler, *_FLAGS, *map(str, _SOURCES), "-o", str(path), "-lm"]
    wide = subprocess.run([*base, _WIDE_FLAG], capture_output=True, timeout=_COMPILE_S, check=False)
    if wide.returncode == 0:
        return
    plain = subprocess.run(base, capture_output=True, timeout=_COMPILE_S, check=False, text=True)
    if plain.returncode != 0:
        lines = plain.stderr.strip().splitlines() or ["no message"]
        raise _CompileError(f"{compiler} failed: {lines[0]}")


def _processor() -> bytes:
    """What -march=native depends on, as far as it can be told without asking the compiler."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    features = dict.fromkeys(line for line in lines if line.startswith(wanted))
    return "\n".join((platform.machine(), platform.processor(), *features)).encode()
