"""What is promised to whom: the pool's own targets, and those of priority classes that have others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.measure.evidence import Budget, Mode, budgets
from controller.slo import SLO

__all__ = ["Promises"]


class Promises:
    """The promise of a pool, and of each class that has one of its own. Immutable."""

    __slots__ = ("by_class", "pool")

    def __init__(self, pool: SLO, by_class: Mapping[str, SLO] | None = None) -> None:
        self.pool = pool
        self.by_class: Mapping[str, SLO] = dict(by_class or {})
        """Classes with a promise of their own; the others have the pool's."""

    def replaced(self, klass: str | None, slo: SLO | None) -> Promises:
        """Return the same with another promise for `klass`, or for the pool when that is None.

        A class that is given none has the pool's from then on. Raises ValueError when a pool is given none.
        """
        if klass is not None:
            others = {name: own for name, own in self.by_class.items() if name != klass}
            return Promises(self.pool, others if slo is None else {**others, klass: slo})
        if slo is None:
            raise ValueError("a pool always has a promise; promise nothing by one without targets")
        return Promises(slo, self.by_class)

    def of(self, klass: str) -> SLO:
        """Return what is promised to requests of `klass`."""
        return self.by_class.get(klass, self.pool) if self.by_class else self.pool

    def whose(self, klass: str | None) -> dict[str, Any]:
        """Return whose promise a decision is about: the class, and whether that has one of its own."""
        return {} if klass is None else {"class": klass, "own": klass in self.by_class}

    def class_budgets(self, mode: Mode, share: float | None) -> dict[str, tuple[Budget, ...]]:
        """Return what each class with a promise of its own leaves to the upstream (`evidence.budgets`)."""
        return {klass: budgets(slo, mode, share) for klass, slo in self.by_class.items()}

    def limits(self, mode: Mode, share: float | None, active: Iterable[str]) -> tuple[Budget, ...]:
        """Return the tightest budgets among the `active` classes; the pool's own while there are none.

        One batch, and one engine, serves all of them, so the size answers to whoever has least time.
        """
        wanted = dict.fromkeys(self.of(klass) for klass in active) or {self.pool: None}
        tightest: dict[str, Budget] = {}
        for slo in wanted:
            for budget in budgets(slo, mode, share):
                known = tightest.get(budget.metric)
                if known is None or budget.limit_s < known.limit_s:
                    tightest[budget.metric] = budget
        if len(tightest) > 1:
            # A first token bounds the size only where nothing else is promised.
            tightest.pop("first", None)
        return tuple(tightest.values())
