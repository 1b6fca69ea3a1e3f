"""How long to hold the first waiting request for company, retuned once a tick."""

from __future__ import annotations

from typing import Any

from controller.laws.base import Advice, View
from controller.measure.stats import proves_above

__all__ = ["OBJECTIVES", "WindowLoop"]

OBJECTIVES = ("goodput", "efficiency")


class WindowLoop:
    """AIMD on `window_ms`, towards an explicit objective.

    `goodput`: an upstream that takes one batch at a time clocks itself (the next batch gathers while the last one
    runs), and one that batches by itself needs no company on the way there. Measured, a window then gains nothing,
    so it is brought down to its minimum. It can gain where several calls may be in flight at once, because a lone
    request would take a whole call: there it grows while capacity, not patience, is short.

    `efficiency`: fewest upstream seconds a request. Where calls are merged the window grows by a tenth of its range
    as long as end-to-end times, queue included, stay below 80 % of the target, and halves when lateness is proven.
    """

    def __init__(self, objective: str = "goodput", *, settle_s: float = 5.0) -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f"the objective is one of {', '.join(OBJECTIVES)}, not {objective!r}")
        self.objective = objective
        self.settle_s = settle_s
        self._last: float | None = None

    def tick(self, view: View, name: str) -> Advice | None:
        """Return a new window for law `name`, or None to hold."""
        if self._last is not None and view.now - self._last < self.settle_s:
            return None
        advice = self._advise(view, name)
        if advice is not None:
            self._last = view.now
        return advice

    def state(self) -> dict[str, Any]:
        """Return the objective."""
        return {"objective": self.objective}

    def _advise(self, view: View, name: str) -> Advice | None:
        bounds, window = view.bounds, view.setpoints.window_ms
        gains = view.mode == "merge" and (self.objective == "efficiency" or view.load.slots > 1)
        if not gains:
            if window <= bounds.min_window_ms:
                return None
            new = bounds.min_window_ms if window < 1.0 else max(bounds.min_window_ms, window / 2.0)
            text = f"Holding requests back gains nothing at this upstream: window_ms from {window:g} to {new:g}."
            return Advice(f"{name}.window_idle", text, window_ms=new)
        return self._stretch(view, name)

    def _stretch(self, view: View, name: str) -> Advice | None:
        bounds, window = view.bounds, view.setpoints.window_ms
        target = view.slo.e2e_s
        samples = [sample for sample in view.samples.current if sample.served]
        if target is None or len(samples) < 10:
            return None
        late = sum(sample.e2e > target for sample in samples)
        seen = {"n": len(samples), "late": late, "target_s": target}
        if late >= 2 and proves_above(late, len(samples), 1.0 - view.slo.quantile):
            if window <= bounds.min_window_ms:
                return None
            new = max(bounds.min_window_ms, window / 2.0)
            text = f"{late} of {len(samples)} were late: window_ms from {window:g} to {new:g}."
            return Advice(f"{name}.window_halved", text, window_ms=new, seen=seen)
        ceiling = min(bounds.max_window_ms, 100.0 * target)
        if self.objective == "goodput":
            busy = view.load.inflight_calls >= view.load.slots or not view.app_limited
            ceiling = ceiling if busy else bounds.min_window_ms
        if late or max(sample.e2e for sample in samples) > 0.8 * target:
            return None
        new = min(ceiling, window + 0.1 * (bounds.max_window_ms - bounds.min_window_ms))
        if abs(new - window) < 1e-9:
            return None
        what = "room to gather more company" if new > window else "capacity to spare, so waiting gains nothing"
        text = f"There is {what}: window_ms from {window:g} to {new:g}."
        return Advice(f"{name}.window", text, window_ms=new, seen=seen)
