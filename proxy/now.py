"""The clock that everything here is measured by."""

from __future__ import annotations

import time
from typing import Final

__all__ = ["monotonic"]

monotonic: Final = time.monotonic
"""Monotonic seconds. A constant of a compiled module, so that whoever asks need not look its name up each time."""
