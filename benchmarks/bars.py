"""A measured number beside its target; what every benchmark prints and writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Bar", "report"]


class Bar(NamedTuple):
    """One bar: a name, what was measured, what was asked for, and whether it was met."""

    name: str
    value: float
    target: float
    ok: bool

    @classmethod
    def below(cls, name: str, value: float, target: float) -> Bar:
        """A bar that is met at or below its target."""
        return cls(f"{name} (<=)", value, target, value <= target)

    @classmethod
    def above(cls, name: str, value: float, target: float) -> Bar:
        """A bar that is met at or above its target."""
        return cls(f"{name} (>=)", value, target, value >= target)


def report(bars: Sequence[Bar], path: str | None = None) -> int:
    """Print the bars as a table and write them to `path` as JSON. Returns 0 when all were met, else 1."""
    width = max((len(bar.name) for bar in bars), default=0)
    for bar in bars:
        print(f"{'ok  ' if bar.ok else 'MISS'}  {bar.name:<{width}}  {bar.value:>10.4g}  target {bar.target:g}")
    if path:
        Path(path).write_text(json.dumps({"bars": [bar._asdict() for bar in bars]}, indent=2) + "\n")
    return 0 if all(bar.ok for bar in bars) else 1
