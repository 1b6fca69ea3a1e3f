"""Names, ranges and words for what an operator may change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from controller.setpoints import Bounds
from controller.slo import SLO

__all__ = ["KNOBS", "check_knob", "direction", "moved", "named", "slo_dict"]

KNOBS = ("max_batch_size", "window_ms")


def direction(old: SLO, new: SLO) -> Literal["", "tightened", "loosened"]:
    """Say in which direction a promise moved; anything that got tighter makes it `tightened`."""
    before, after = dict(old.targets()), dict(new.targets())
    tighter = new.quantile > old.quantile or any(
        name not in before or target < before[name] for name, target in after.items()
    )
    if tighter:
        return "tightened"
    looser = new.quantile < old.quantile or any(
        name not in after or after[name] > target for name, target in before.items()
    )
    return "loosened" if looser else ""


def moved(old: SLO, new: SLO) -> str:
    """Return what a change of promise did to each target, as the end of a sentence; empty if it did nothing."""
    before, after = dict(old.targets()), dict(new.targets())
    changes = [
        f"{name} from {_told(before.get(name))} to {_told(after.get(name))}"
        for name in dict.fromkeys((*before, *after))
        if before.get(name) != after.get(name)
    ]
    if old.quantile != new.quantile:
        changes.append(f"the quantile from {old.quantile:g} to {new.quantile:g}")
    return f": {', '.join(changes)}" if changes else ""


def _told(target_s: float | None) -> str:
    return "no promise" if target_s is None else f"{1000.0 * target_s:g} ms"


def check_knob(name: str, value: float, bounds: Bounds) -> float:
    """Return `value` if the knob may have it. Raises ValueError, naming what would be right."""
    if name == "max_batch_size":
        low, high = float(bounds.min_batch_size), float(bounds.max_batch_size)
        if value != int(value):
            raise ValueError(f"max_batch_size is a whole number, not {value}")
    elif name == "window_ms":
        low, high = bounds.min_window_ms, bounds.max_window_ms
    else:
        raise ValueError(f"unknown setpoint {name!r}; known are {', '.join(KNOBS)}")
    if not low <= value <= high:
        raise ValueError(f"{name} must lie in {low:g}..{high:g}, not {value:g}")
    return value


def slo_dict(slo: SLO) -> dict[str, Any]:
    """Return a promise in milliseconds, JSON-ready."""
    return {f"{name}_ms": 1000.0 * target for name, target in slo.targets()} | {"quantile": slo.quantile}


def named(values: Mapping[str, float]) -> str:
    """Return `name = value` pairs for a sentence."""
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())
