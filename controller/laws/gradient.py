"""Gradient on service time, anchored to the target."""

from __future__ import annotations

from typing import Any, ClassVar

from controller.laws.base import Advice, View
from controller.laws.options import Option
from controller.laws.slow_loop import SlowLoop
from controller.laws.window_loop import OBJECTIVES, WindowLoop
from controller.measure.samples import Sample

__all__ = ["GradientLaw"]


class GradientLaw:
    """Gradient2 (Netflix concurrency-limits) on service time, once a tick:

        g = max(0.5, min(1, tolerance * long / short)),   L <- 0.8 L + 0.2 (g L + 4)

    with `short` the mean service time of the samples since the last tick and `long` their average over 600. By itself
    it follows `long` upwards and knows no target: a flat row of timeouts looks like the new normal. So nothing is
    added while the slow loop's evidence says late, which takes a tenth back instead, or while any sample came close
    to its budget.
    """

    name: ClassVar[str] = "gradient"
    forms_batches: ClassVar[bool] = False
    e2e_share: ClassVar[float | None] = None
    options: ClassVar[tuple[Option, ...]] = (
        Option("tolerance", 1.5, "How much longer than usual service may take before the limit falls.", 1.0, 10.0),
        Option("queue", 4.0, "What is added each second while service is as usual.", 0.0, 1000.0),
        Option("objective", "goodput", "What the window is for; efficiency stretches it.", choices=OBJECTIVES),
    )

    def __init__(self, *, tolerance: float = 1.5, queue: float = 4.0, objective: str = "goodput") -> None:
        if not tolerance >= 1.0:
            raise ValueError(f"tolerance is at least 1, not {tolerance}")
        self.tolerance = tolerance
        self.queue = queue
        self._guard = SlowLoop()
        self._window = WindowLoop(objective)
        self._long: float | None = None
        self._seen = 0
        self._sum = 0.0
        self._count = 0
        self._limit: float | None = None
        self._gradient = 1.0

    def observe(self, sample: Sample) -> None:
        """Average the service time."""
        if not sample.served and not sample.timeout:
            return
        self._sum += sample.service
        self._count += 1
        self._seen += 1
        weight = 1.0 / self._seen if self._seen <= 10 else 2.0 / 601.0
        long = sample.service if self._long is None else self._long
        self._long = long + weight * (sample.service - long)

    def tick(self, view: View) -> Advice | None:
        """Follow the gradient, unless the target objects."""
        guarded = self._guard.tick(view, self.name)
        if guarded is not None and guarded.rule.endswith("back_off"):
            self._limit = float(guarded.max_batch_size or view.bounds.min_batch_size)
            self._sum, self._count = 0.0, 0
            return guarded
        return self._follow(view) or self._window.tick(view, self.name)

    def state(self) -> dict[str, Any]:
        """Return the averages and the limit before rounding."""
        return {"long_s": self._long, "gradient": self._gradient, "limit": self._limit} | self._guard.state()

    def _follow(self, view: View) -> Advice | None:
        if not view.limits or not self._count or self._long is None:
            return None
        short = self._sum / self._count
        self._sum, self._count = 0.0, 0
        size = view.setpoints.max_batch_size
        if self._limit is None or abs(self._limit - size) >= 1.0:
            self._limit = float(size)
        if self._long > 2.0 * short:
            self._long *= 0.95
        self._gradient = max(0.5, min(1.0, self.tolerance * self._long / max(1e-6, short)))
        limit = 0.8 * self._limit + 0.2 * (self._gradient * self._limit + self.queue)
        evidence = self._guard.last
        close = evidence is not None and evidence.close > 0
        if limit > self._limit and (view.app_limited or view.retarget == "tightened" or close):
            return None
        self._limit = min(float(view.bounds.max_batch_size), max(float(view.bounds.min_batch_size), limit))
        new = int(self._limit)
        if new == size:
            return None
        text = (
            f"Service takes {short:.3g} s against {self._long:.3g} s in the long run, a gradient of "
            f"{self._gradient:.2f}: max_batch_size from {size} to {new}."
        )
        seen = {"short_s": short, "long_s": self._long, "gradient": self._gradient}
        return Advice("gradient.follow", text, new, seen=seen)
