"""Which part of what the configuration allows is this process's own, where several serve together."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WHOLE", "Share"]


class Share(NamedTuple):
    """Which part of what the configuration allows is this process's own."""

    number: int
    """Its number, from 0."""
    of: int
    """How many processes there are."""

    def part(self, whole: int) -> int:
        """Return this process's part of `whole`, at least 1; the parts differ by one at most."""
        return max(1, whole // self.of + (self.number < whole % self.of))


WHOLE = Share(0, 1)
"""There is only this process."""
