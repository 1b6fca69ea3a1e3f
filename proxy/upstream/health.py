"""What a health check can find."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Health"]


class Health(StrEnum):
    """How an upstream was found."""

    WELL = "well"
    """It answered as it should; without a path to ask for, it accepted a connection."""
    ILL = "ill"
    """It is there, and answered otherwise or not in time."""
    GONE = "gone"
    """It accepts no connection."""
