"""The slow loop: AIMD on upstream time, moved by evidence and by nothing else."""

from __future__ import annotations

from typing import Any

from controller.laws.base import Advice, View
from controller.measure.evidence import Evidence
from controller.measure.stats import proves_above, proves_below

__all__ = ["SlowLoop"]

_LATELY = 40
"""So many of the newest samples are judged by themselves too, lest a long clean record hide a fresh slow-down."""
_SURE = 0.99
_BLIND = 3
"""An engine that batches by itself has a cliff where its memory ends, which no model of what was seen shows. So each
step up waits for so many samples of the last one."""
_REMEMBER_S = 300.0
_REGRET_S = 30.0
_FAIR = 6


class SlowLoop:
    """Additive increase, multiplicative decrease of the batch size, on budgets of upstream-owned time.

    Decrease, B <- B * `back_off`: the late share is proven above what the target allows (binomial, 95 %): two late
    of 35 suffice. When most requests are late, as after a tightened target, B <- B * budget / typical time, at most
    halving. A step up that breaks within half a minute is taken back whole.

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
        self._broke_at: int | None = None
        self._broke_when = 0.0
        self._grown: tuple[int, float] = (1 << 30, 0.0)

    def tick(self, view: View, name: str, budget: float = 1.0) -> Advice | None:
        """Return a new batch size for law `name`, or None to hold.

        `budget` scales every budget: below 1 after evidence that meeting it was not enough.
        """
        if not view.limits:
            return None
        if view.retarget or view.in_vain:
            self._broke_at = None
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
        advice = self._increase(view, evidence, name, allowed, budget)
        if advice is not None:
            self._grown = (view.setpoints.max_batch_size, view.now)
        return advice

    def state(self) -> dict[str, Any]:
        """Return the evidence of the last tick."""
        return {} if self.last is None else {"evidence": self.last._asdict()}

    def _too_late(self, evidence: Evidence, allowed: float, confidence: float) -> bool:
        # The first to come back are the short ones, and no fair sample.
        if evidence.late < 2 or evidence.n < _FAIR:
            return False
        return proves_above(evidence.late, evidence.n, allowed, confidence)

    def _decrease(self, view: View, evidence: Evidence, name: str) -> Advice:
        size = view.setpoints.max_batch_size
        self._broke_at, self._broke_when = size, view.now
        factor = self.back_off
        if evidence.late_share > 0.5:
            factor = max(0.5, min(factor, 1.0 / max(1.0, evidence.typical)))
        new = min(size - 1, int(size * factor))
        grown_from, when = self._grown
        if grown_from < new and view.now - when < _REGRET_S:
            new = grown_from
        what = f"{evidence.late} of {evidence.n} took longer upstream than the {evidence.binding} target leaves them"
        if evidence.overdue:
            what += f", {evidence.overdue} of them still in flight"
        text = f"{what}: max_batch_size from {size} to {max(new, view.bounds.min_batch_size)}."
        return Advice(f"{name}.back_off", text, new, seen=evidence._asdict())

    def _increase(self, view: View, evidence: Evidence, name: str, allowed: float, budget: float) -> Advice | None:
        size = view.setpoints.max_batch_size
        seen = evidence._asdict()
        kept = view.evidence(aged=True)
        if evidence.n < kept.n and proves_below(kept.close, kept.n, allowed, self.confidence):
            evidence = kept
            seen = evidence._asdict()
        if proves_below(evidence.close, evidence.n, allowed, self.confidence):
            new = min(view.bounds.max_batch_size, size + max(1, size // 8))
            why = f"the cap held work back and {evidence.close} near the limit of {evidence.n} prove room"
            return Advice(f"{name}.proven", _grow_text(why, size, new), new, seen=seen)
        most = min(view.bounds.max_batch_size, self._known_limit(view.now))
        if most <= size:
            return None
        step = size // 2 if 1.5 * evidence.worst <= 0.5 * self.headroom * budget else size // 8
        new = min(most, size + max(1, step))
        room = max(evidence.worst, evidence.growing * new / size) <= self.headroom * budget
        best: Advice | None = None
        if evidence.n >= (5 if view.retarget else self.least) and room:
            why = f"the cap held work back and the slowest of {evidence.n} used {evidence.worst:.0%} of its time"
            best = Advice(f"{name}.headroom", _grow_text(why, size, new), new, seen=seen)
        if self.trust_model and evidence.late <= 1 and (view.mode == "merge" or _settled(view, evidence)):
            reach, ratio = self._reach(view, min(most, size + max(1, size // 2)), budget)
            if reach > (new if best is not None else size):
                why = f"the cap held work back and the model puts {reach} at {ratio:.0%} of the upstream time"
                best = Advice(f"{name}.model", _grow_text(why, size, reach), reach, seen=seen | {"ratio": ratio})
        return best

    def _reach(self, view: View, most: int, budget: float) -> tuple[int, float]:
        """Return the largest size up to `most` that the model puts within the budget, and how much of it it uses."""
        size = view.setpoints.max_batch_size
        reach = most
        while reach > size:
            ratio = view.predicted_ratio(reach)
            if ratio is not None and ratio <= budget:
                return reach, ratio
            reach -= max(1, (reach - size) // 2)
        return size, 0.0

    def _known_limit(self, now: float) -> int:
        """Return the largest size to try on headroom alone: just short of where it broke, until that is long ago.

        An engine short of memory breaks at once and without notice; running into that again and again is what plain
        additive increase would do.
        """
        if self._broke_at is None or now - self._broke_when > _REMEMBER_S:
            return 1 << 30
        return max(1, int(0.95 * self._broke_at))


def _settled(view: View, evidence: Evidence) -> bool:
    """Whether an engine has had time to show what the last step did to it."""
    return evidence.n >= _BLIND and view.now - view.samples.since >= view.samples.mean_service_s


def _grow_text(why: str, size: int, new: int) -> str:
    return f"{why[0].upper()}{why[1:]}: max_batch_size from {size} to {new}."
