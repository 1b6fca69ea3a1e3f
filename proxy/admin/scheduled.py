"""Changes that are to be made later. They survive a restart where state is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controller.decision import Decision
from proxy.admin.changes import BODIES, Kind, steps
from proxy.admin.temporary import TemporaryChanges, undo_of
from proxy.clock import Clock, Timer
from proxy.pool_view import PoolView

__all__ = ["MAX_PLANS", "Plan", "ScheduledChanges"]

_LOG = logging.getLogger("trimtab.audit")
MAX_PLANS = 1000
_LOOK_S = 20.0
"""So late a change is made at most after the clock on the wall was set forward."""
_NEAR_S = 0.01
"""The two clocks do not tick together."""


@dataclass(frozen=True)
class Plan:
    """One change to come."""

    id: int
    pool: str
    kind: Kind
    body: dict[str, Any]
    """As it was sent, JSON-ready."""
    at: float
    """Unix seconds."""
    for_s: float | None
    """How long it is to hold; None for good."""
    actor: str


class ScheduledChanges:
    """Makes each planned change when its time has come, in the name of whoever planned it."""

    def __init__(
        self,
        clock: Clock,
        pools: Callable[[], Mapping[str, PoolView]],
        decided: Callable[[PoolView, Decision], None],
        temporary: TemporaryChanges,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._pools = pools
        self._decided = decided
        self._temporary = temporary
        self.wall = wall
        """Returns Unix seconds."""
        self._plans: dict[int, tuple[Plan, Timer]] = {}
        self._last = 0

    def put(self, pool: str, kind: Kind, body: dict[str, Any], at: float, for_s: float | None, actor: str) -> Plan:
        """Plan a change. Raises ValueError when there are too many already."""
        if len(self._plans) >= MAX_PLANS:
            raise ValueError(f"{MAX_PLANS} changes are planned already")
        plan = Plan(self._last + 1, pool, kind, body, at, for_s, actor)
        self._start(plan)
        _LOG.info("pool %s: %s plans a change of %s", pool, actor, kind, extra={"plan": plan.id, "pool": pool})
        return plan

    def cancel(self, number: int, actor: str) -> bool:
        """Forget a plan; say whether there was one."""
        found = self._plans.pop(number, None)
        if found is None:
            return False
        plan, timer = found
        timer.cancel()
        _LOG.info(
            "pool %s: %s cancelled plan %d", plan.pool, actor, number, extra={"plan": number, "pool": plan.pool}
        )
        return True

    def plans(self) -> list[Plan]:
        """Return what is to come, the next first."""
        return sorted((plan for plan, _ in self._plans.values()), key=lambda plan: (plan.at, plan.id))

    def stop(self) -> None:
        """Make no change any more."""
        for _, timer in self._plans.values():
            timer.cancel()

    def dump(self) -> list[dict[str, Any]]:
        """Return what to keep over a restart, JSON-ready."""
        return [asdict(plan) for plan in self.plans()]

    def restore(self, kept: Iterable[Mapping[str, Any]]) -> None:
        """Take over what `dump` returned in an earlier run. What should have been over meanwhile is left out."""
        for fields in kept:
            plan = Plan(**fields)
            self._last = max(self._last, plan.id)
            if plan.for_s is not None and plan.at + plan.for_s <= self.wall():
                _LOG.warning("pool %s: the time of plan %d passed while nothing ran", plan.pool, plan.id)
                continue
            self._start(plan)

    def _start(self, plan: Plan) -> None:
        self._last = max(self._last, plan.id)
        self._wait(plan)

    def _wait(self, plan: Plan) -> None:
        """Look at the clock on the wall when it should be time, and now and then: it is set, and machines sleep."""
        due = self._clock.now() + min(_LOOK_S, max(0.0, plan.at - self.wall()))
        self._plans[plan.id] = (plan, self._clock.call_at(due, lambda: self._look(plan)))

    def _look(self, plan: Plan) -> None:
        if plan.at - self.wall() > _NEAR_S:
            self._wait(plan)
        else:
            self._due(plan)

    def _due(self, plan: Plan) -> None:
        del self._plans[plan.id]
        pool = self._pools().get(plan.pool)
        if pool is None:
            _LOG.error("plan %d is void: there is no pool %s any more", plan.id, plan.pool)
            return
        undo = undo_of(pool, plan.kind)
        body = BODIES[plan.kind].model_validate(plan.body)
        try:
            for step in steps(pool, plan.kind, body):
                decision = step(self._clock.now(), plan.actor)
                self._decided(pool, decision)
                _LOG.info("pool %s: %s", pool.name, decision.text, extra={"plan": plan.id, "pool": pool.name})
        except ValueError:
            # The configuration changed since it was planned and checked.
            _LOG.exception("pool %s: plan %d could not be carried out", plan.pool, plan.id)
            return
        if plan.for_s is None:
            self._temporary.cancel(plan.pool, plan.kind)
        else:
            late_s = max(0.0, self.wall() - plan.at)
            self._temporary.put(plan.pool, plan.kind, max(0.0, plan.for_s - late_s), undo)
