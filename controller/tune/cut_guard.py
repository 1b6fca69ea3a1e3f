"""Whether cutting the batch size helped, and what to do when it did not: undo it, wait, and try up from the floor.

A law cuts because calls take too long. Where that has another cause (a slow server, a promise that nothing keeps)
each cut looks like a reason for the next one, until the least size that is left lets nobody through. So each row of
cuts is judged by what it did, whichever law made it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any, Final

from controller.laws.base import Advice, View
from controller.measure.evidence import Evidence

__all__ = ["CutGuard"]

_CUTS: Final = 2
_LEAST: Final = 10
_FEW: Final = 6
"""Samples of a size before anything is said about it; fewer where a law would cut again on them."""
_OVER: Final = 20
"""So many of the newest in time in a row: what made others late is over."""
_EFFECT: Final = 0.25
"""What a cut must do, as log(time) over log(size): two of a tenth each, 19 % less, must take 5 % off the time."""
_FELT: Final = 0.15
"""Part by which fewer must have run together before cuts have been tried at all."""
_ANOTHER_DAY: Final = 0.15
"""A typical time that moved so much, relative to the budget, is of another state of the upstream."""
_PATIENCE_S: Final = 60.0
_MOST_PATIENCE_S: Final = 960.0
_FLOOR_S: Final = 10.0
_MOST_FLOOR_S: Final = 320.0


@dataclass(slots=True)
class _Cuts:
    """A row of cuts with nothing but cuts between them."""

    size: int
    """Where it began."""
    company: float
    """How many ran together when it was last known to be what it is now."""
    typical: float
    """The median time over the budget then."""
    late_share: float
    count: int = 0


class CutGuard:
    """Judges rows of cuts; a law's advice passes through it.

    Two cuts or more, under which 15 % fewer ran together, are undone when the median time over its budget fell by
    less than a quarter of that (logarithms of both) and the late share by less than half. Then the law may not cut
    until the median has moved by 15 %, or for a minute, twice as long each time it was in vain. Where the median rose
    meanwhile the upstream has changed, and the row is judged from there. No cut is made for what is over, with the
    newest twenty in time.

    At the floor, where a law has cut to it and it still holds work back, twice the size is tried after ten seconds,
    and half as often each time that it had to be taken back.
    """

    def __init__(self) -> None:
        self._row: _Cuts | None = None
        self._held: tuple[float, float, float] | None = None
        """While cuts are held off: since when, and the median and late share under which they were in vain."""
        self._patience_s = _PATIENCE_S
        self._size = 0
        self._moved_at = 0.0
        self._cut_to_floor = False
        self._probed_from: int | None = None
        self._floor_s = _FLOOR_S

    @property
    def holding(self) -> bool:
        """Whether cuts are held off because they were in vain."""
        return self._held is not None

    def state(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        row = self._row
        return {"holding": self.holding, "cuts": 0 if row is None else row.count}

    def review(self, view: View, advice: Advice | None, name: str) -> Advice | None:
        """Return what becomes of a law's `advice`, or what is to be done without any."""
        size = view.setpoints.max_batch_size
        evidence = view.evidence()
        self._look(view, size, evidence)
        if self._held is not None and self._over(view, evidence):
            self._held = None
        new = size if advice is None or advice.max_batch_size is None else advice.max_batch_size
        in_vain = self._judge(view, size, evidence, name, _FEW if new < size else _LEAST)
        if in_vain is not None:
            return self._moved(view, in_vain)
        if new < size:
            return self._cut(view, size, new, evidence, advice)
        if new > size:
            self._row = None
            return self._moved(view, advice)
        return advice if advice is not None else self._probe(view, size, name)

    # Inner workings.

    def _look(self, view: View, size: int, evidence: Evidence) -> None:
        """Begin anew when somebody else moved the size, or when the promise was changed."""
        if size != self._size or view.retarget:
            others = size != self._size
            self._row = self._held = None
            self._patience_s, self._floor_s = _PATIENCE_S, _FLOOR_S
            self._probed_from = None
            if others:
                self._cut_to_floor, self._size, self._moved_at = False, size, view.now

    def _over(self, view: View, evidence: Evidence) -> bool:
        """Whether cuts may be tried again."""
        assert self._held is not None
        since, typical, late_share = self._held
        if evidence.n >= _LEAST and _far(evidence.typical, typical):
            self._patience_s = _PATIENCE_S
            return True
        if evidence.n >= 2 * _LEAST and evidence.late_share <= 0.5 * late_share:
            return True
        if view.now - since < self._patience_s:
            return False
        self._patience_s = min(_MOST_PATIENCE_S, 2.0 * self._patience_s)
        return True

    def _judge(self, view: View, size: int, evidence: Evidence, name: str, least: int) -> Advice | None:
        """Undo a row of cuts that was in vain, once it has been seen in `least` samples."""
        row = self._row
        if row is None or evidence.n < least or evidence.late < 2:
            return None
        company = _company(view, size)
        if company > row.company:
            # It was not the cap that bounded them: more run together, in spite of the cut.
            row.company, row.typical, row.late_share = company, evidence.typical, evidence.late_share
        if row.count < _CUTS or company > (1.0 - _FELT) * row.company:
            return None
        wanted = _EFFECT * log(row.company / company)
        gained = log(row.typical / evidence.typical) if row.typical > 0.0 and evidence.typical > 0.0 else 0.0
        if gained >= wanted or evidence.late_share <= 0.5 * row.late_share:
            return None
        if gained < -_ANOTHER_DAY:
            row.company, row.typical, row.late_share = company, evidence.typical, evidence.late_share
            return None
        self._row = None
        self._held = (view.now, evidence.typical, evidence.late_share)
        text = (
            f"{row.count} cuts changed nothing: in the middle {row.typical:.0%} of the {evidence.binding} target's "
            f"time was used before and {evidence.typical:.0%} of {evidence.n} since, so no size keeps it now: "
            f"max_batch_size back from {size} to {row.size}."
        )
        seen = evidence._asdict() | {"cuts": row.count, "typical_before": row.typical}
        return Advice(f"{name}.in_vain", text, row.size, seen=seen)

    def _cut(self, view: View, size: int, new: int, evidence: Evidence, advice: Advice | None) -> Advice | None:
        if self._held is not None:
            return None
        lately = view.evidence(last=_OVER)
        if evidence.late and lately.n >= _OVER and not lately.late:
            return None
        if self._probed_from is not None and size > self._probed_from:
            self._floor_s = min(_MOST_FLOOR_S, 2.0 * self._floor_s)
        self._probed_from = None
        row = self._row
        if row is None:
            row = self._row = _Cuts(size, _company(view, size), evidence.typical, evidence.late_share)
        row.count += 1
        if new <= view.bounds.min_batch_size:
            self._cut_to_floor = True
        return self._moved(view, advice)

    def _probe(self, view: View, size: int, name: str) -> Advice | None:
        """Try upwards from the floor."""
        if size > view.bounds.min_batch_size or not self._cut_to_floor or view.app_limited:
            return None
        if view.now - self._moved_at < self._floor_s or size >= view.bounds.max_batch_size:
            return None
        waited = view.now - self._moved_at
        self._row, self._probed_from = None, size
        text = (
            f"For {waited:.0f} s the least size has held work back: max_batch_size from {size} to {2 * size}, to see."
        )
        return self._moved(view, Advice(f"{name}.probe", text, 2 * size, seen=view.evidence()._asdict()))

    def _moved(self, view: View, advice: Advice | None) -> Advice | None:
        """Remember where the size will be, so that somebody else's move is told from it."""
        if advice is not None and advice.max_batch_size is not None:
            self._size, self._moved_at = view.bounds.clamp_batch_size(advice.max_batch_size), view.now
        return advice


def _company(view: View, size: int) -> float:
    """Return how many ran together on average under the present size."""
    samples = view.samples.current
    if not samples:
        return float(size)
    return max(1.0, min(float(size), sum([sample.batch for sample in samples]) / len(samples)))


def _far(typical: float, before: float) -> bool:
    if typical <= 0.0 or before <= 0.0:
        return typical != before
    return abs(log(typical / before)) > _ANOTHER_DAY
