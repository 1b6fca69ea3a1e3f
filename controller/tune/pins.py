"""How far the knobs may go, and which of them an operator holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.laws import Advice
from controller.setpoints import Bounds, Setpoints
from controller.tune.knobs import KNOBS, check_knob

__all__ = ["Pins"]


class Pins:
    """The bounds of a pool's knobs and the values an operator holds them at."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._held: dict[str, float] = {}

    @property
    def held(self) -> dict[str, float]:
        """A copy of what is held, by name."""
        return dict(self._held)

    def holds(self, name: str) -> bool:
        """Whether a knob is held."""
        return name in self._held

    def hold(self, values: Mapping[str, float]) -> dict[str, float]:
        """Hold knobs at `values`, and return these. Raises ValueError, and holds none, for a bad name or value."""
        checked = {name: check_knob(name, value, self.bounds) for name, value in values.items()}
        self._held.update(checked)
        return checked

    def release(self, names: Iterable[str] | None) -> list[str]:
        """Give knobs back, all when `names` is None; returns those that were held. Raises ValueError."""
        wanted = list(self._held) if names is None else list(names)
        for name in wanted:
            if name not in KNOBS:
                raise ValueError(f"unknown setpoint {name!r}; known are {', '.join(KNOBS)}")
        return [name for name in wanted if self._held.pop(name, None) is not None]

    def replace(self, held: Mapping[str, float]) -> None:
        """Hold exactly these."""
        self._held = dict(held)

    def bounded(self, now: Setpoints, advice: Advice) -> Setpoints:
        """Return what becomes of the setpoints `now` by `advice`: within bounds, and held where held."""
        size, window = advice.max_batch_size, advice.window_ms
        changed = now.changed(
            max_batch_size=None if size is None else self.bounds.clamp_batch_size(size),
            window_ms=None if window is None else self.bounds.clamp_window_ms(window),
        )
        return self.applied(now, changed)

    def applied(self, now: Setpoints, wanted: Setpoints) -> Setpoints:
        """Return the generation after `now` with the values of `wanted`, held where held."""
        size = self._held.get("max_batch_size", wanted.max_batch_size)
        return now.changed(max_batch_size=int(size), window_ms=self._held.get("window_ms", wanted.window_ms))

    def before(self, decision_id: int, was: Mapping[str, Any], became: Mapping[str, Any]) -> dict[str, float]:
        """Return what is held, with what a decision changed as it was before that.

        Raises ValueError where a knob is held that a law had moved by it.
        """
        held = dict(self._held)
        if "pins" not in was:
            moved = [name for name in KNOBS if name in held and was[name] != became.get(name, was[name])]
            if moved:
                raise ValueError(
                    f"{' and '.join(moved)} is pinned; unpin before decision {decision_id} is rolled back"
                )
            return held
        before, after = was["pins"], became["pins"]
        for name in KNOBS:
            if before.get(name) != after.get(name):
                held.pop(name, None)
                if name in before:
                    held[name] = before[name]
        return held
