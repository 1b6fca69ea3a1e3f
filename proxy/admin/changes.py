"""The changes that may be made now, later, or for a while: what each is made of, and how it is checked and made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from controller.decision import Decision
from controller.laws import check_steering, make_law
from proxy.admin.problem import field_error
from proxy.admin.schemas import FreezeIn, LawIn, SetpointsPatch, SloPatch, TargetsPatch
from proxy.admin.views import merged_slo
from proxy.config.base import Section
from proxy.pool_view import PoolView

__all__ = ["BODIES", "SETPOINTS", "Change", "Kind", "check", "check_bounds", "steps"]

Kind = Literal["slo", "setpoints", "law", "freeze"]
Change = Callable[[float, str], Decision]
"""Makes a change at a time, in somebody's name. Raises ValueError."""

BODIES: dict[Kind, type[Section]] = {"slo": SloPatch, "setpoints": SetpointsPatch, "law": LawIn, "freeze": FreezeIn}
SETPOINTS = ("max_batch_size", "window_ms")


def check(pool: PoolView, kind: Kind, body: Any) -> None:
    """Raise ApiError 422 for a change that would be refused."""
    try:
        if kind == "slo":
            _check_slo(pool, body)
        elif kind == "setpoints":
            check_bounds(pool, _pins(body)[0])
        elif kind == "law":
            own = {key: value for key, value in body.options.items() if key not in ("admission", "late_target")}
            check_steering(body.law)
            make_law(body.law, own)
    except ValueError as error:
        raise field_error("law" if kind == "law" else "body", str(error)) from None


def steps(pool: PoolView, kind: Kind, body: Any) -> Sequence[Change]:
    """Return what to do, in order. A patch is laid over what is there when the step is made."""
    controller = pool.controller
    if kind == "slo":
        return _promise_steps(pool, body)
    if kind == "law":
        return [lambda now, actor: controller.set_law(body.law, body.options, now, actor)]
    if kind == "freeze":
        return [lambda now, actor: controller.freeze(body.frozen, now, actor)]
    pins, freed = _pins(body)
    made: list[Change] = []
    if pins:
        made.append(lambda now, actor: controller.pin(pins, now, actor))
    if freed:
        made.append(lambda now, actor: controller.unpin(freed, now, actor))
    return made


def _check_slo(pool: PoolView, body: SloPatch) -> None:
    """Raise ApiError 422 for a class that is not there, ValueError for an SLO that nobody can make."""
    merged_slo(pool.controller.slo, body)
    known = list(pool.config.classes)
    for klass, patch in body.classes.items():
        if klass not in pool.config.classes:
            accepted = f"the pool's classes: {', '.join(known) or 'none'}"
            raise field_error(f"classes.{klass[:64]}", f"there is no such class; accepted: {accepted}", known=known)
        if patch is not None:
            merged_slo(pool.controller.slo_of(klass), patch)


def _promise_steps(pool: PoolView, body: SloPatch) -> list[Change]:
    """Return the pool's change, then those of its classes."""
    controller = pool.controller
    made: list[Change] = []
    if body.model_fields_set != {"classes"}:
        made.append(lambda now, actor: controller.set_slo(merged_slo(controller.slo, body), now, actor))
    for klass, patch in body.classes.items():

        def change(now: float, actor: str, klass: str = klass, patch: TargetsPatch | None = patch) -> Decision:
            slo = None if patch is None else merged_slo(controller.slo_of(klass), patch)
            return controller.set_slo(slo, now, actor, klass)

        made.append(change)
    return made


def check_bounds(pool: PoolView, pins: dict[str, float]) -> None:
    """Raise ApiError 422 for a pin outside the range that the pool's configuration allows."""
    for name, value in pins.items():
        allowed = getattr(pool.config.setpoints, name)
        if not allowed.min <= value <= allowed.max:
            accepted = f"{allowed.min:g} to {allowed.max:g}, the pool's setpoints.{name}"
            raise field_error(name, f"got {value:g}; accepted: {accepted}", accepted=accepted)


def _pins(body: SetpointsPatch) -> tuple[dict[str, float], list[str]]:
    given = {name: getattr(body, name) for name in SETPOINTS if name in body.model_fields_set}
    pins = {name: float(value) for name, value in given.items() if value is not None}
    return pins, [name for name, value in given.items() if value is None]
