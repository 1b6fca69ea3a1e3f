"""A constrained bandit around the model's choice."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from controller.laws.base import Advice, View
from controller.laws.options import Option
from controller.laws.slow_loop import SlowLoop
from controller.measure.samples import Sample
from controller.measure.stats import SPRT

__all__ = ["BanditLaw"]


class BanditLaw:
    """Discounted UCB over three arms: the slow loop's size, and 12 % below and above it.

    An arm is held for one epoch; its reward is the answers within budget a second, of requests dispatched in the
    epoch's second half (the first half still serves the arm before). An SPRT on lateness ends an epoch early and
    bars the upper arm for a while. Free exploration over all sizes costs 3 to 15 % of the goodput, measured, so the
    arms are kept this close; even so this law is only let into the shadow and into switchback experiments. It never
    tries the upper arm while the cap does not bind.
    """

    name: ClassVar[str] = "bandit"
    forms_batches: ClassVar[bool] = True
    e2e_share: ClassVar[float | None] = 0.9
    trials_only: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("epoch_s", 20.0, "For how long an arm is held.", 0.0, 3600.0, open_low=True),
        Option("reach", 0.12, "How far the arms lie from the model's choice.", 0.0, 0.5, open_low=True),
        Option("discount", 0.9, "What an epoch's reward still counts an epoch later.", 0.0, 1.0, open_low=True),
    )

    def __init__(self, *, epoch_s: float = 20.0, reach: float = 0.12, discount: float = 0.9) -> None:
        if not epoch_s > 0.0 or not 0.0 < reach <= 0.5 or not 0.0 < discount <= 1.0:
            raise ValueError("the bandit needs epoch_s > 0, 0 < reach <= 0.5 and 0 < discount <= 1")
        self.epoch_s = epoch_s
        self.reach = reach
        self.discount = discount
        self._loop = SlowLoop(trust_model=True)
        self._center: int | None = None
        self._arm = 0
        self._plays = {-1: 0.0, 0: 0.0, 1: 0.0}
        self._rewards = {-1: 0.0, 0: 0.0, 1: 0.0}
        self._started: float | None = None
        self._barred_until = -math.inf
        self._sprt = SPRT()
        self._judged = 0

    def observe(self, sample: Sample) -> None:
        """Need nothing beyond the samples of the generation."""

    def tick(self, view: View) -> Advice | None:
        """Let the slow loop move the centre; else end an epoch when it is over and play the next arm."""
        if not view.limits:
            return None
        moved = self._loop.tick(view, self.name)
        if moved is not None and moved.max_batch_size is not None:
            self._center, self._arm = view.bounds.clamp_batch_size(moved.max_batch_size), 0
            self._begin(view)
            return moved
        if self._center is None:
            self._center = view.setpoints.max_batch_size
            self._begin(view)
            return None
        if self._unpunctual(view):
            self._barred_until = view.now + 5.0 * self.epoch_s
        elif self._started is not None and view.now - self._started < self.epoch_s:
            return None
        if not view.samples.current:
            # Nothing was learned about this arm, so there is nothing to choose the next one by.
            self._begin(view)
            return None
        self._reward(view)
        return self._play(view)

    def state(self) -> dict[str, Any]:
        """Return the arms and what they earned."""
        means = {str(arm): self._rewards[arm] / self._plays[arm] for arm in self._plays if self._plays[arm]}
        return {"center": self._center, "arm": self._arm, "mean_reward": means} | self._loop.state()

    def _begin(self, view: View) -> None:
        self._started = view.now
        self._sprt.reset()
        self._judged = view.samples.total

    def _unpunctual(self, view: View) -> bool:
        new = view.samples.total - self._judged
        self._judged = view.samples.total
        if new <= 0:
            return False
        evidence = view.evidence(last=new)
        verdicts = [self._sprt.add(index < evidence.late) for index in range(evidence.n)]
        return 1 in verdicts

    def _reward(self, view: View) -> None:
        if self._started is None or view.now <= self._started:
            return
        middle = (self._started + view.now) / 2.0
        budget = min(limit.limit_s for limit in view.limits)
        metric = next(limit.metric for limit in view.limits if limit.limit_s == budget)
        good = 0
        for sample in view.samples.current:
            value = getattr(sample, metric)
            good += sample.dispatched >= middle and sample.served and value is not None and value <= budget
        for arm in self._plays:
            self._plays[arm] *= self.discount
            self._rewards[arm] *= self.discount
        self._plays[self._arm] += 1.0
        self._rewards[self._arm] += good / (view.now - middle)

    def _play(self, view: View) -> Advice | None:
        arms = [arm for arm in (0, -1, 1) if arm < 1 or not (view.app_limited or view.now < self._barred_until)]
        total = sum(self._plays.values())
        best = max((self._rewards[arm] / self._plays[arm] for arm in arms if self._plays[arm] > 0.0), default=1.0)

        def bound(arm: int) -> float:
            plays = self._plays[arm]
            if plays < 0.3:
                return math.inf
            return self._rewards[arm] / plays + 0.5 * best * math.sqrt(math.log(1.0 + total) / plays)

        self._arm = max(arms, key=bound)
        self._begin(view)
        center = self._center or view.setpoints.max_batch_size
        step = max(1, round(self.reach * center))
        size = view.bounds.clamp_batch_size(center + self._arm * step)
        if size == view.setpoints.max_batch_size:
            return None
        what = {-1: "a little below", 0: "at", 1: "a little above"}[self._arm]
        text = f"The next epoch of {self.epoch_s:g} s is played {what} the model's choice of {center}: {size}."
        return Advice("bandit.epoch", text, size, seen={"arm": self._arm, "center": center})
