"""One pool's controller: observations in, setpoints and verdicts out.

Everything here is arithmetic on arguments: no clock is read and nothing waits, so the live proxy and the
simulator drive the very same object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from controller.decision import Decision, DecisionLog
from controller.load import Load
from controller.observation import Observation
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.verdict import ADMITTED, Choice, Verdict
from policies.base import Job

__all__ = ["Choice", "Load", "PoolController", "Verdict"]

KNOBS = ("max_batch_size", "window_ms")


class PoolController:
    """Steers one pool: admits, forms batches, and retunes `max_batch_size` and `window_ms` once a second."""

    def __init__(
        self,
        pool: str,
        *,
        slo: SLO,
        setpoints: Setpoints,
        bounds: Bounds,
        law: str = "aimd",
        law_options: Mapping[str, Any] | None = None,
        mode: Literal["merge", "gate"] = "merge",
        now: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self.mode = mode
        self.bounds = bounds
        self.decisions = DecisionLog(wall=wall)
        self._slo = slo
        self._setpoints = setpoints
        self._law_name = law
        self._law_options = dict(law_options or {})
        self._pins: dict[str, float] = {}
        self._started = now

    @property
    def setpoints(self) -> Setpoints:
        """The knobs of the current generation, pins applied."""
        return self._setpoints

    @property
    def slo(self) -> SLO:
        """The promise in force."""
        return self._slo

    @property
    def law_name(self) -> str:
        """The law that turns the knobs."""
        return self._law_name

    @property
    def pins(self) -> Mapping[str, float]:
        """Knobs an operator holds, by name."""
        return dict(self._pins)

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""

    def token(self, gap_s: float) -> None:
        """Take in one gap between two tokens of a running stream, in seconds."""

    def admit(self, job: Job, now: float, load: Load) -> Verdict:
        """Say whether `job` may queue."""
        return ADMITTED

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed."""
        return Choice(min(len(candidates), self._setpoints.max_batch_size), ())

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long the first waiting item may still be held for company."""
        return self._setpoints.window_ms / 1000.0

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again, in seconds."""
        return 1.0

    def tick(self, now: float, load: Load) -> Decision | None:
        """Retune the knobs; call once a second."""
        return None

    def set_slo(self, slo: SLO, now: float, actor: str) -> Decision:
        """Change the promise."""
        old, self._slo = self._slo, slo
        return self._note(now, actor, "admin.slo", _slo_dict(old), _slo_dict(slo), "The SLO changed.")

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs at `values`, whatever the law says. Raises ValueError for a bad name or value."""
        checked = {name: _check_knob(name, value, self.bounds) for name, value in values.items()}
        old = self._knobs()
        self._pins.update(checked)
        self._apply_pins()
        return self._note(now, actor, "admin.pin", old, self._knobs(), f"{_names(checked)} pinned by {actor}.")

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back to the law, all of them when `names` is None."""
        released = [name for name in (self._pins if names is None else names) if name in self._pins]
        for name in released:
            del self._pins[name]
        text = f"{', '.join(released) or 'nothing'} unpinned by {actor}."
        return self._note(now, actor, "admin.unpin", self._knobs(), self._knobs(), text)

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law; they keep their values."""
        old, self._law_name, self._law_options = self._law_name, law, dict(options)
        return self._note(now, actor, "admin.law", {"law": old}, {"law": law}, f"{actor} replaced {old} by {law}.")

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the whole state, JSON-ready."""
        return {"pool": self.pool, "law": self._law_name, "setpoints": self._knobs(), "pins": self.pins}

    def _knobs(self) -> dict[str, Any]:
        return {name: getattr(self._setpoints, name) for name in KNOBS} | {"generation": self._setpoints.generation}

    def _apply_pins(self) -> None:
        size = self._pins.get("max_batch_size")
        self._setpoints = self._setpoints.changed(
            max_batch_size=None if size is None else int(size), window_ms=self._pins.get("window_ms")
        )

    def _note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        return self.decisions.add(
            at=now, pool=self.pool, rule=rule, law=self._law_name, actor=actor, old=old, new=new, text=text
        )


def _check_knob(name: str, value: float, bounds: Bounds) -> float:
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


def _slo_dict(slo: SLO) -> dict[str, Any]:
    return {f"{name}_ms": 1000.0 * target for name, target in slo.targets()} | {"quantile": slo.quantile}


def _names(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {value:g}" for name, value in values.items())
