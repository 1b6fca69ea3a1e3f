"""AIMD on service time, with evidence."""

from __future__ import annotations

from typing import Any, ClassVar

from controller.laws.base import Advice, View
from controller.laws.options import Option
from controller.laws.slow_loop import SlowLoop
from controller.laws.window_loop import OBJECTIVES, WindowLoop
from controller.measure.samples import Sample

__all__ = ["AimdLaw"]


class AimdLaw:
    """The slow loop alone, on measured times only: no model has to be right for it to work."""

    name: ClassVar[str] = "aimd"
    forms_batches: ClassVar[bool] = False
    e2e_share: ClassVar[float | None] = None
    options: ClassVar[tuple[Option, ...]] = (
        Option("back_off", 0.9, "What is left of the batch size after a back-off.", 0.5, 1.0, open_high=True),
        Option("headroom", 0.85, "Part of the budget that growth on headroom may use.", 0.0, 1.0, open_low=True),
        Option("least", 10, "Samples needed to grow on headroom.", 2, 512),
        Option("objective", "goodput", "What the window is for; efficiency stretches it.", choices=OBJECTIVES),
    )

    def __init__(
        self, *, back_off: float = 0.9, headroom: float = 0.85, least: int = 10, objective: str = "goodput"
    ) -> None:
        self._batch = SlowLoop(back_off=back_off, headroom=headroom, least=least)
        self._window = WindowLoop(objective)

    def observe(self, sample: Sample) -> None:
        """Need nothing beyond the samples of the generation."""

    def tick(self, view: View) -> Advice | None:
        """Retune the batch size; when it holds, the window."""
        return self._batch.tick(view, self.name) or self._window.tick(view, self.name)

    def state(self) -> dict[str, Any]:
        """Return the evidence of the last tick."""
        return self._batch.state() | self._window.state()
