"""What the C library does with memory that was freed."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["return_large_blocks"]

_M_MMAP_THRESHOLD = -3
_LARGE = 1_048_576


def return_large_blocks() -> bool:
    """Have blocks from 1 MiB on go back to the system when they are freed. Returns whether the C library does so.

    Left alone, glibc raises that bound to the size of the largest block that was ever freed (mallopt(3)), so one
    large body makes the process keep what all later ones took. Where there is no glibc, nothing needs to be done.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE))
