"""Changes that take themselves back after a while, unless somebody changes the same thing again before."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from controller.decision import Decision
from controller.loop import PoolController
from controller.slo import SLO
from proxy.admin.changes import Kind
from proxy.clock import Clock, Timer
from proxy.pool_view import PoolView

__all__ = ["Pending", "TemporaryChanges", "undo_of"]

_LOG = logging.getLogger("trimtab.audit")
_ACTOR = "admin:expiry"


class Pending(NamedTuple):
    """A change that will be taken back."""

    kind: Kind
    until: float
    """When, on the clock of the pools."""
    undo: dict[str, Any]
    """What to go back to, JSON-ready."""
    timer: Timer


class TemporaryChanges:
    """Remembers what to go back to. One pending change for each pool and kind: a newer one replaces it."""

    def __init__(
        self,
        clock: Clock,
        pools: Callable[[], Mapping[str, PoolView]],
        decided: Callable[[PoolView, Decision], None],
    ) -> None:
        self._clock = clock
        self._pools = pools
        self._decided = decided
        self._pending: dict[tuple[str, Kind], Pending] = {}

    def put(self, pool: str, kind: Kind, for_s: float, undo: dict[str, Any]) -> None:
        """Take a change of `pool` back after `for_s` seconds, by restoring `undo`."""
        before = self._pending.get((pool, kind))
        if before is not None:
            undo = before.undo  # go back to what was there before the first of several short changes
        self.cancel(pool, kind)
        until = self._clock.now() + for_s
        timer = self._clock.call_at(until, lambda: self._expire(pool, kind))
        self._pending[pool, kind] = Pending(kind, until, undo, timer)

    def cancel(self, pool: str, kind: Kind) -> None:
        """Let the change stay for good; nothing happens when none is pending."""
        pending = self._pending.pop((pool, kind), None)
        if pending is not None:
            pending.timer.cancel()

    def pending(self, pool: str) -> list[dict[str, Any]]:
        """Return what will be taken back, JSON-ready."""
        now = self._clock.now()
        return [
            {"kind": kind, "in_s": round(max(0.0, entry.until - now), 1), "back_to": entry.undo}
            for (name, kind), entry in self._pending.items()
            if name == pool
        ]

    def dump(self, wall: float) -> list[dict[str, Any]]:
        """Return what to keep over a restart, JSON-ready. `wall` is the present in Unix seconds."""
        now = self._clock.now()
        return [
            {"pool": pool, "kind": kind, "until": wall + entry.until - now, "undo": entry.undo}
            for (pool, kind), entry in self._pending.items()
        ]

    def restore(self, kept: Iterable[Mapping[str, Any]], wall: float) -> None:
        """Take over what `dump` returned in an earlier run; what is overdue is taken back at once."""
        for entry in kept:
            self.put(entry["pool"], entry["kind"], max(0.0, entry["until"] - wall), entry["undo"])

    def stop(self) -> None:
        """Forget everything; changes stay as they are."""
        for pending in self._pending.values():
            pending.timer.cancel()
        self._pending.clear()

    def _expire(self, name: str, kind: Kind) -> None:
        pending = self._pending.pop((name, kind))
        pool = self._pools().get(name)
        if pool is None:
            return
        try:
            decisions = _restore(pool, kind, pending.undo, self._clock.now())
        except ValueError:
            # The pool was rebuilt meanwhile with a range or law that does not allow the old value.
            _LOG.exception("pool %s: the %s could not be taken back to %s", name, kind, pending.undo)
            return
        for decision in decisions:
            self._decided(pool, decision)
            _LOG.info("pool %s: %s", name, decision.text)


def undo_of(pool: PoolView, kind: Kind) -> dict[str, Any]:
    """Return what `kind` would have to be restored to, as it is now."""
    controller = pool.controller
    if kind == "slo":
        return asdict(controller.slo) | {
            "classes": {name: asdict(slo) for name, slo in controller.class_slos.items()}
        }
    if kind == "setpoints":
        return {"pins": dict(controller.pins)}
    if kind == "law":
        law, options = controller.standing_law
        return {"law": law, "options": dict(options)}
    return {"frozen": controller.frozen}


def _restore(pool: PoolView, kind: Kind, undo: dict[str, Any], now: float) -> list[Decision]:
    """Put back what `undo_of` returned. Raises ValueError."""
    controller = pool.controller
    if kind == "slo":
        return _restore_promises(controller, undo, now)
    if kind == "law":
        return [controller.set_law(undo["law"], undo["options"], now, _ACTOR)]
    if kind == "freeze":
        return [controller.freeze(undo["frozen"], now, _ACTOR)]
    pins: dict[str, float] = undo["pins"]
    decision = controller.unpin([name for name in controller.pins if name not in pins], now, _ACTOR)
    return [controller.pin(pins, now, _ACTOR) if pins else decision]


def _restore_promises(controller: PoolController, undo: Mapping[str, Any], now: float) -> list[Decision]:
    """Put back the pool's SLO and those of classes; a kept change that says nothing of classes leaves them."""
    targets = {name: value for name, value in undo.items() if name != "classes"}
    wanted = {name: SLO(**own) for name, own in undo.get("classes", {}).items()}
    present = controller.class_slos
    named = dict.fromkeys([*present, *wanted]) if "classes" in undo else {}
    changed = [name for name in named if present.get(name) != wanted.get(name)]
    made = [] if SLO(**targets) == controller.slo and changed else [controller.set_slo(SLO(**targets), now, _ACTOR)]
    return made + [controller.set_slo(wanted.get(name), now, _ACTOR, name) for name in changed]
