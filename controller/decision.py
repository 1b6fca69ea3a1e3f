"""What the controller decided, on what evidence, and what came of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

__all__ = ["Decision", "DecisionLog"]


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of a pool's control, or one attempt at it, in words that an operator can check."""

    id: int
    at: float
    """Monotonic seconds, the clock of the observations."""
    wall: float
    """Unix seconds, for people and logs."""
    pool: str
    rule: str
    """Which rule fired, for instance `aimd.back_off` or `admin.slo`."""
    law: str
    actor: str
    """`controller`, or `admin:<who>`."""
    seen: Mapping[str, Any] = field(default_factory=dict)
    """The inputs of the rule."""
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """One plain sentence: why."""
    outcome: str = ""
    """What came of it; empty until the next generation has been measured."""

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready copy."""
        return {
            "id": self.id,
            "at": self.at,
            "wall": self.wall,
            "pool": self.pool,
            "rule": self.rule,
            "law": self.law,
            "actor": self.actor,
            "seen": dict(self.seen),
            "old": dict(self.old),
            "new": dict(self.new),
            "text": self.text,
            "outcome": self.outcome,
        }


class DecisionLog:
    """The last decisions of one pool, numbered without gaps. Old entries fall out of the ring.

    `wall` is the clock that stamps entries for people; decisions themselves never read it.
    """

    __slots__ = ("_next_id", "_ring", "_wall")

    def __init__(self, capacity: int = 1000, *, wall: Callable[[], float]) -> None:
        self._ring: deque[Decision] = deque(maxlen=capacity)
        self._next_id = 1
        self._wall = wall

    def __len__(self) -> int:
        return len(self._ring)

    def add(
        self,
        *,
        at: float,
        pool: str,
        rule: str,
        law: str,
        actor: str = "controller",
        seen: Mapping[str, Any] | None = None,
        old: Mapping[str, Any] | None = None,
        new: Mapping[str, Any] | None = None,
        text: str = "",
    ) -> Decision:
        """Number, stamp and keep a decision."""
        decision = Decision(
            id=self._next_id,
            at=at,
            wall=self._wall(),
            pool=pool,
            rule=rule,
            law=law,
            actor=actor,
            seen=dict(seen or {}),
            old=dict(old or {}),
            new=dict(new or {}),
            text=text,
        )
        self._next_id += 1
        self._ring.append(decision)
        return decision

    def resolve(self, decision_id: int, outcome: str) -> None:
        """Write down what came of a decision; nothing happens when it has left the ring."""
        if not self._ring:
            return
        index = decision_id - self._ring[0].id
        if 0 <= index < len(self._ring):
            self._ring[index] = replace(self._ring[index], outcome=outcome)

    def since(self, decision_id: int) -> list[Decision]:
        """Return the kept decisions with a larger id, oldest first."""
        if not self._ring:
            return []
        skip = max(0, decision_id + 1 - self._ring[0].id)
        return list(islice(self._ring, skip, None))

    def latest(self, count: int) -> list[Decision]:
        """Return the newest `count` decisions, newest first."""
        return list(islice(reversed(self._ring), max(0, count)))
