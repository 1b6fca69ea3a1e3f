"""What came of a decision, told once the settings it led to have been measured."""

from __future__ import annotations

from dataclasses import dataclass

from controller.decision import DecisionLog
from controller.measure.evidence import Evidence

__all__ = ["FollowUp"]

_LEAST = 20
_LONGEST_S = 30.0


@dataclass(slots=True)
class _Pending:
    decision_id: int
    at: float
    before: Evidence
    size: int
    wants: str


class FollowUp:
    """Waits for the evidence of the new settings and writes it into the decision that made them."""

    def __init__(self, log: DecisionLog) -> None:
        self._log = log
        self._pending: list[_Pending] = []

    def watch(self, decision_id: int, at: float, before: Evidence, size: int, wants: str = "evidence") -> None:
        """Follow a decision. `wants` is `evidence` of the new setpoints, or `movement` after a changed target."""
        self._pending.append(_Pending(decision_id, at, before, size, wants))

    def tick(self, now: float, evidence: Evidence, size: int) -> None:
        """Write down the outcomes that are known by now."""
        self._pending = [item for item in self._pending if not self._resolve(item, now, evidence, size)]

    def superseded(self, now: float, evidence: Evidence, size: int) -> None:
        """Settle what waits for evidence, because its setpoints are about to be replaced."""
        for item in self._pending:
            if item.wants == "evidence":
                self._log.resolve(item.decision_id, _measured(item, now, evidence))
        self._pending = [item for item in self._pending if item.wants != "evidence"]

    def _resolve(self, item: _Pending, now: float, evidence: Evidence, size: int) -> bool:
        age = now - item.at
        if item.wants == "movement":
            if size == item.size and age < _LONGEST_S:
                return False
            moved = (
                f"max_batch_size moved from {item.size} to {size} within {age:.0f} s"
                if size != item.size
                else f"max_batch_size stayed at {size} for {age:.0f} s"
            )
            self._log.resolve(item.decision_id, moved + ".")
            return True
        if evidence.n < _LEAST and age < _LONGEST_S:
            return False
        self._log.resolve(item.decision_id, _measured(item, now, evidence))
        return True


def _measured(item: _Pending, now: float, evidence: Evidence) -> str:
    age = now - item.at
    if not evidence.n:
        return f"Nothing was measured under it in {age:.0f} s."
    text = (
        f"In {age:.0f} s under it {evidence.late} of {evidence.n} were late upstream and the slowest took "
        f"{evidence.worst:.0%} of the budget"
    )
    if item.before.n:
        text += f"; before, {item.before.late} of {item.before.n} and {item.before.worst:.0%}"
    return text + "."
