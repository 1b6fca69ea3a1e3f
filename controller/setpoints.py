"""The knobs the controller turns, and the range it may turn them in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Bounds", "Setpoints"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Inclusive ranges of the setpoints. Raises ValueError when a range is empty or out of reach."""

    min_batch_size: int = 1
    max_batch_size: int = 256
    min_window_ms: float = 0.0
    max_window_ms: float = 100.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_batch_size <= self.max_batch_size:
            raise ValueError(
                f"batch size bounds must satisfy 1 <= min <= max, not {self.min_batch_size}..{self.max_batch_size}"
            )
        if not 0.0 <= self.min_window_ms <= self.max_window_ms:
            raise ValueError(
                f"window bounds must satisfy 0 <= min <= max, not {self.min_window_ms}..{self.max_window_ms} ms"
            )

    def clamp_batch_size(self, value: float) -> int:
        """Round `value` and bring it into range."""
        return max(self.min_batch_size, min(self.max_batch_size, round(value)))

    def clamp_window_ms(self, value: float) -> float:
        """Bring `value` into range."""
        return max(self.min_window_ms, min(self.max_window_ms, value))


@dataclass(frozen=True, slots=True)
class Setpoints:
    """One generation of the knobs. Immutable: every change makes the next generation."""

    max_batch_size: int
    """merge: most items in one upstream call. gate: most sequences in flight at the pool."""
    window_ms: float
    """How long the first waiting item may be held for company."""
    generation: int = 0

    def changed(self, *, max_batch_size: int | None = None, window_ms: float | None = None) -> Setpoints:
        """Return the next generation with the given values; itself when nothing differs."""
        size = self.max_batch_size if max_batch_size is None else max_batch_size
        window = self.window_ms if window_ms is None else window_ms
        if size == self.max_batch_size and window == self.window_ms:
            return self
        return replace(self, max_batch_size=size, window_ms=window, generation=self.generation + 1)

    def renewed(self) -> Setpoints:
        """Return the next generation with the same values."""
        return replace(self, generation=self.generation + 1)

    def as_dict(self) -> dict[str, Any]:
        """Return the knobs by name, JSON-ready."""
        return {"max_batch_size": self.max_batch_size, "window_ms": self.window_ms, "generation": self.generation}
