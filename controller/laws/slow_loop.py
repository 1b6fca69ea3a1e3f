"""The slow loop: AIMD on upstream time, moved by evidence and by nothing else."""

from __future__ import annotations

from typing import Any

from controller.evidence import Evidence
from controller.laws.base import Advice, View
from controller.stats import proves_above, proves_below

__all__ = ["SlowLoop"]

_LATELY = 40
"""So many of the newest samples are judged by themselves too, lest a long clean record hide a fresh slow-down."""
_SURE = 0.99


class SlowLoop:
    """Additive increase, multiplicative decrease of the batch size, on budgets of upstream-owned time.

    Decrease, B <- B * `back_off`: the late share is proven above what the target allows (binomial, 95 %): two late
    of 35 suffice. When most requests are late, as after a tightened target, B <- B * budget / typical time, at most
    halving.

    Increase, B <- B + max(1, B/8), or B/2 while less than half of the budget would be used: only while the cap held
    work back, and only on evidence: none close to the budget in so many that the share is proven small (299 for a
    99 % target), or so much headroom in at least `least` samples that one step more stays inside it, or, with
    `trust_model`, an identified model that says so.

    Clipper (Crankshaw et al., NSDI 2017) takes back 10 %, because the best batch size does not fluctuate much; a cap
    that saws between x and 0.75 x is unused by an eighth on average.
    """

    def __init__(
        self,
        *,
        back_off: float = 0.9,
        headroom: float = 0.85,
        least: int = 10,
        confidence: float = 0.95,
        trust_model: bool = False,
    ) -> None:
        if not 0.5 <= back_off < 1.0:
            raise ValueError(f"back_off lies in [0.5, 1), not {back_off}")
        if not 0.0 < headroom <= 1.0:
            raise ValueError(f"headroom lies in (0, 1], not {headroom}")
        self.back_off = back_off
        self.headroom = headroom
        self.least = least
        self.confidence = confidence
        self.trust_model = trust_model
        self.last: Evidence | None = None

    def tick(self, view: View, name: str, budget: float = 1.0) -> Advice | None:
        """Return a new batch size for law `name`, or None to hold.

        `budget` scales every budget: below 1 after evidence that meeting it was not enough.
        """
        if not view.limits:
            return None
        evidence = self.last = view.evidence(self.least if view.retarget else 0)
        allowed = 1.0 - view.slo.quantile
        if view.setpoints.max_batch_size > view.bounds.min_batch_size:
            if self._too_late(evidence, allowed, self.confidence):
                return self._decrease(view, evidence, name)
            lately = view.evidence(last=_LATELY)
            if self._too_late(lately, allowed, _SURE):
                return self._decrease(view, lately, name)
        if view.app_limited or view.retarget == "tightened":
            return None
        if view.setpoints.max_batch_size >= view.bounds.max_batch_size:
            return None
        return self._increase(view, evidence, name, allowed, budget)

    def state(self) -> dict[str, Any]:
        """Return the evidence of the last tick."""
        return {} if self.last is None else {"evidence": self.last._asdict()}

    def _too_late(self, evidence: Evidence, allowed: float, confidence: float) -> bool:
        return evidence.late >= 2 and proves_above(evidence.late, evidence.n, allowed, confidence)

    def _decrease(self, view: View, evidence: Evidence, name: str) -> Advice:
        size = view.setpoints.max_batch_size
        factor = self.back_off
        if evidence.late_share > 0.5:
            factor = max(0.5, min(factor, 1.0 / max(1.0, evidence.typical)))
        new = min(size - 1, int(size * factor))
        what = f"{evidence.late} of {evidence.n} took longer upstream than the {evidence.binding} target leaves them"
        if evidence.overdue:
            what += f", {evidence.overdue} of them still in flight"
        text = f"{what}: max_batch_size from {size} to {max(new, view.bounds.min_batch_size)}."
        return Advice(f"{name}.back_off", text, new, seen=evidence._asdict())

    def _increase(self, view: View, evidence: Evidence, name: str, allowed: float, budget: float) -> Advice | None:
        size = view.setpoints.max_batch_size
        step = size // 2 if 1.5 * evidence.worst <= 0.5 * self.headroom * budget else size // 8
        new = min(view.bounds.max_batch_size, size + max(1, step))
        seen = evidence._asdict()
        growth = new / size
        if evidence.n >= (5 if view.retarget else self.least) and evidence.worst * growth <= self.headroom * budget:
            why = f"the cap held work back and the slowest of {evidence.n} used {evidence.worst:.0%} of its time"
            return Advice(f"{name}.headroom", _grow_text(why, size, new), new, seen=seen)
        if proves_below(evidence.close, evidence.n, allowed, self.confidence):
            why = (
                f"{evidence.n} requests with {evidence.close} near the limit prove room while the cap held work back"
            )
            return Advice(f"{name}.proven", _grow_text(why, size, new), new, seen=seen)
        if not self.trust_model or evidence.late > 1:
            return None
        reach = min(view.bounds.max_batch_size, size + max(1, size // 2))
        while reach > size:
            ratio = view.predicted_ratio(reach)
            if ratio is not None and ratio <= budget:
                why = f"the cap held work back and the model puts {reach} at {ratio:.0%} of the upstream time"
                return Advice(f"{name}.model", _grow_text(why, size, reach), reach, seen=seen | {"ratio": ratio})
            reach -= max(1, (reach - size) // 2)
        return None


def _grow_text(why: str, size: int, new: int) -> str:
    return f"{why[0].upper()}{why[1:]}: max_batch_size from {size} to {new}."
