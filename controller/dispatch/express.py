"""The second lane: how much of a pool requests may take that do not wait for company.

An express class skips the batching window, and usually the queue's order favours it as well. Without a bound a flood
of it would leave the others what is left over. So while others wait, express requests get at most a share of the
places (gate) or of each batch (merge); the others' share is theirs only while they need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from controller.load import Load
from controller.measure.stats import proves_above
from controller.verdict import Choice
from policies.base import Job

__all__ = ["ExpressLane", "Shift"]

_LEAST: Final = 0.1
_MOST: Final = 0.9
_STEP: Final = 0.05
_SETTLE_S: Final = 10.0
_FEW: Final = 6


class Shift(NamedTuple):
    """A new share and why."""

    old: float
    new: float
    rule: str
    text: str
    seen: dict[str, Any]


class ExpressLane:
    """Bounds the express classes' part of a pool while others wait, and moves the bound by evidence.

    Starts at `share`. Down by a tenth when lateness among the others is proven (binomial, 95 %) while none is among
    the express; up by 0.05 in the opposite case; held when both or neither suffer, for then a bound mends nothing.
    Between 0.1 and 0.9: neither side can be shut out. At most one step in ten seconds, on requests dispatched since.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not _LEAST <= share <= _MOST:
            raise ValueError(f"the express lane's share lies in {_LEAST}..{_MOST}, not {share}")
        self.share = share
        self._since = float("-inf")
        self._counts = {True: [0, 0], False: [0, 0]}
        self._classes: set[str] = set()
        self._bound = False

    @property
    def known(self) -> bool:
        """Whether anybody ever took the lane."""
        return bool(self._classes)

    def arrived(self, job: Job) -> None:
        """Learn which classes take the lane."""
        if job.express:
            self._classes.add(job.klass)

    def observe(self, klass: str, dispatched: float | None, late: bool) -> None:
        """Count one admitted request; those dispatched under an earlier share are left out."""
        if self._classes and dispatched is not None and dispatched >= self._since:
            counts = self._counts[klass in self._classes]
            counts[0] += 1
            counts[1] += late

    def bound(self, choice: Choice, jobs: Sequence[Job], cap: int, load: Load, *, whole_batches: bool) -> Choice:
        """Return `choice`, with express requests beyond the share replaced by others who wait.

        `whole_batches`: the share is of one batch; otherwise of all places, those in flight included.
        """
        if not self._classes or choice.take <= 0:
            return choice
        going = choice.sent(len(jobs))
        if not any(jobs[index].express for index in going):
            return choice
        waiting = [index for index in range(len(jobs)) if not jobs[index].express and index not in choice.shed]
        if not waiting:
            return choice
        if whole_batches:
            left = ceil(self.share * choice.take)
        else:
            # One place is always the lane's, else a full house of others would shut it out.
            left = max(ceil(self.share * cap), 1) - load.inflight_express
        kept: list[int] = []
        for index in going:
            if jobs[index].express:
                left -= 1
                if left < 0:
                    continue
            kept.append(index)
        if len(kept) == len(going):
            return choice
        self._bound = True
        others = [index for index in waiting if index not in kept]
        kept = sorted(kept + others[: len(going) - len(kept)])
        out = {*kept, *choice.shed}
        last = kept[-1] if kept else len(jobs)
        return Choice(len(kept), choice.shed, tuple(i for i in range(last) if i not in out))

    def tick(self, now: float, allowed: float) -> Shift | None:
        """Move the share if the counts justify it; `allowed` is the share that may be late."""
        bound, self._bound = self._bound, False
        if now < self._since + _SETTLE_S:
            return None
        (express_n, express_late), (other_n, other_late) = self._counts[True], self._counts[False]
        if min(express_n, other_n) < _FEW:
            return None
        fast = express_late >= 2 and proves_above(express_late, express_n, allowed)
        slow = other_late >= 2 and proves_above(other_late, other_n, allowed)
        seen = {"express": [express_n, express_late], "others": [other_n, other_late]}
        if slow and not express_late and self.share > _LEAST:
            new, rule = max(_LEAST, 0.9 * self.share), "express.less"
            what = f"{other_late} of {other_n} others were late and none of {express_n} express requests"
        elif fast and not other_late and bound and self.share < _MOST:
            new, rule = min(_MOST, self.share + _STEP), "express.more"
            what = f"{express_late} of {express_n} express requests were late and none of {other_n} others"
        else:
            return None
        old, self.share = self.share, new
        self._since = now
        self._counts = {True: [0, 0], False: [0, 0]}
        text = f"{what[0].upper()}{what[1:]}: the express lane's share from {old:.2f} to {new:.2f}."
        return Shift(old, new, rule, text, seen)

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        return {
            "share": self.share,
            "classes": sorted(self._classes),
            "express": {"n": self._counts[True][0], "late": self._counts[True][1]},
            "others": {"n": self._counts[False][0], "late": self._counts[False][1]},
        }
