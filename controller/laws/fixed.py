"""The law that never turns a knob."""

from __future__ import annotations

from typing import Any, ClassVar

from controller.laws.base import Advice, View
from controller.laws.options import Option
from controller.measure.samples import Sample

__all__ = ["FixedLaw"]


class FixedLaw:
    """Keep the setpoints where they are: the baseline of every comparison, and what an operator freezes to."""

    name: ClassVar[str] = "fixed"
    forms_batches: ClassVar[bool] = False
    e2e_share: ClassVar[float | None] = None
    options: ClassVar[tuple[Option, ...]] = ()

    def observe(self, sample: Sample) -> None:
        """Ignore `sample`."""

    def tick(self, view: View) -> Advice | None:
        """Hold."""
        return None

    def state(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}
