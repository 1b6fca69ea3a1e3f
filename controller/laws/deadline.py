"""The default: batches formed by deadline, inside setpoints that the slow loop keeps retuning."""

from __future__ import annotations

from typing import Any, ClassVar

from controller.laws.base import Advice, View
from controller.laws.options import Option
from controller.laws.slow_loop import SlowLoop
from controller.laws.window_loop import OBJECTIVES, WindowLoop
from controller.measure.samples import Sample
from controller.measure.stats import SPRT

__all__ = ["DeadlineLaw"]


class DeadlineLaw:
    """Two loops. The fast one forms each batch for the most answers in time per second of service
    (`controller.dispatch.former.form_batch`); the slow one caps it.

    Where the former runs (merge), a batch may take up to 90 % of the e2e target: it only holds requests that will
    make it, so half of the target, the bound for blind batches, would waste capacity under overload. The slow loop
    moves the cap by AIMD on service time as in `aimd`, except that an identified model may vouch for growth, so that
    a step in load is answered within seconds instead of the minute that 299 clean requests take.

    An SPRT over upstream lateness (0.5 % against 2 %) trims the budget the model is held to: 5 % less when lateness
    is proven, 2 % more (at most 110 %) when punctuality is.
    """

    name: ClassVar[str] = "deadline"
    forms_batches: ClassVar[bool] = True
    e2e_share: ClassVar[float | None] = 0.9
    options: ClassVar[tuple[Option, ...]] = (
        Option("back_off", 0.9, "What is left of the batch size after a back-off.", 0.5, 1.0, open_high=True),
        Option("headroom", 0.85, "Part of the budget that growth on headroom may use.", 0.0, 1.0, open_low=True),
        Option("least", 10, "Samples needed to grow on headroom.", 2, 512),
        Option("objective", "goodput", "What the window is for; efficiency stretches it.", choices=OBJECTIVES),
    )

    def __init__(
        self, *, back_off: float = 0.9, headroom: float = 0.85, least: int = 10, objective: str = "goodput"
    ) -> None:
        self._batch = SlowLoop(back_off=back_off, headroom=headroom, least=least, confidence=0.99, trust_model=True)
        self._window = WindowLoop(objective)
        self._sprt = SPRT()
        self._judged: tuple[int, int] = (0, 0)
        self.budget = 1.0

    def observe(self, sample: Sample) -> None:
        """Need nothing beyond the samples of the generation."""

    def tick(self, view: View) -> Advice | None:
        """Trim the budget; retune the batch size; when it holds, the window."""
        self._trim(view)
        return self._batch.tick(view, self.name, self.budget) or self._window.tick(view, self.name)

    def state(self) -> dict[str, Any]:
        """Return the evidence of the last tick, the trimmed budget and the test behind it."""
        trim = {"budget": self.budget, "sprt_llr": self._sprt.llr, "sprt_n": self._sprt.n}
        return self._batch.state() | self._window.state() | trim

    def _trim(self, view: View) -> None:
        generation, judged = self._judged
        if view.in_vain:
            # What no size keeps is no reason to ask more of the model.
            self.budget = max(1.0, self.budget)
            self._sprt.reset()
            judged = view.samples.total
        if generation != view.samples.generation:
            self._sprt.reset()
            judged = 0
        new = view.samples.total - judged
        if new > 0 and view.limits:
            evidence = view.evidence(last=new)
            for index in range(evidence.n - evidence.overdue):
                verdict = self._sprt.add(index < evidence.late - evidence.overdue)
                if verdict > 0:
                    self.budget = max(0.5, self.budget * 0.95)
                elif verdict < 0:
                    self.budget = min(1.1, self.budget * 1.02)
        self._judged = (view.samples.generation, view.samples.total)
