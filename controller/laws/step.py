"""The published plain rule, kept as the baseline to beat."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, ClassVar

from controller.laws.base import FRESH_S, Advice, View
from controller.laws.options import Option
from controller.measure.samples import Sample

__all__ = ["StepLaw"]


class StepLaw:
    """P99 above 1.2x the target: batch size - 2. Below 0.7x: + 2. In between: hold.

    P99 is the sample quantile of the last 100 end-to-end latencies, averaged over the last three looks, one look
    every 5 s. This is the rule as it circulates; it has two known faults that the other laws do not share. It reacts
    to queueing by removing capacity, which lengthens the queue, and it blames old samples on new settings.
    """

    name: ClassVar[str] = "step"
    forms_batches: ClassVar[bool] = False
    e2e_share: ClassVar[float | None] = None
    options: ClassVar[tuple[Option, ...]] = (
        Option("step", 2, "By how much the batch size moves.", 1, 1024),
        Option("high", 1.2, "Times the target above which it falls; above low.", 0.0, 100.0, open_low=True),
        Option("low", 0.7, "Times the target below which it grows.", 0.0, 100.0, open_low=True),
        Option("period_s", 5.0, "Seconds between two looks.", 0.0, 3600.0, open_low=True),
    )

    def __init__(self, *, step: int = 2, high: float = 1.2, low: float = 0.7, period_s: float = 5.0) -> None:
        if step < 1 or not 0.0 < low < high or not period_s > 0.0:
            raise ValueError("the step law needs step >= 1, 0 < low < high and a period above 0 s")
        self.step = step
        self.high = high
        self.low = low
        self.period_s = period_s
        self._recent: deque[Sample] = deque(maxlen=100)
        self._looks: deque[float] = deque(maxlen=3)
        self._last: float | None = None

    def observe(self, sample: Sample) -> None:
        """Keep the last hundred requests."""
        if sample.served:
            self._recent.append(sample)

    def tick(self, view: View) -> Advice | None:
        """Compare the averaged P99 with the target, every `period_s`."""
        target = next(iter(sorted(view.slo.targets(), key=lambda item: item[0] != "e2e")), None)
        if target is None or (self._last is not None and view.now - self._last < self.period_s):
            return None
        name, limit = target
        fresh = [sample for sample in self._recent if sample.done >= view.now - FRESH_S]
        values = sorted(value for sample in fresh if (value := getattr(sample, name)) is not None)
        if len(values) < 10:
            return None
        self._last = view.now
        self._looks.append(values[min(len(values) - 1, math.ceil(view.slo.quantile * len(values)) - 1)])
        p99 = sum(self._looks) / len(self._looks)
        size = view.setpoints.max_batch_size
        seen = {"latency": name, "p99_s": p99, "target_s": limit, "n": len(values)}
        if p99 > self.high * limit:
            text = f"P99 of {name} is {p99:.3g} s, above {self.high:g}x the target of {limit:g} s: {self.step} fewer."
            return Advice("step.down", text, size - self.step, seen=seen)
        if p99 < self.low * limit:
            text = f"P99 of {name} is {p99:.3g} s, below {self.low:g}x the target of {limit:g} s: {self.step} more."
            return Advice("step.up", text, size + self.step, seen=seen)
        return None

    def state(self) -> dict[str, Any]:
        """Return the averaged P99 of the last looks."""
        return {"p99_s": sum(self._looks) / len(self._looks) if self._looks else None, "looks": len(self._looks)}
