"""One law on one day: what every comparison is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.loop import PoolController
from controller.setpoints import Bounds, Setpoints
from controller.simulator.arrivals import Request
from controller.simulator.engine import EnginePlant
from controller.simulator.gate import simulate_gate
from controller.simulator.merge import MergePlant, simulate_merge
from controller.simulator.record import Record
from controller.slo import SLO

__all__ = ["LawSpec", "play", "play_engine"]

GRID = (2, 4, 8, 10, 12, 16, 18, 20, 24, 32)
"""Batch sizes that the static oracle is searched over."""
OnTick = Callable[[float, PoolController], None]


class LawSpec:
    """A law with its options and where its setpoints start."""

    def __init__(
        self,
        name: str,
        *,
        options: Mapping[str, Any] | None = None,
        size: int = 8,
        window_ms: float = 0.0,
        highest: int = 32,
    ) -> None:
        self.name = name
        self.options = dict(options or {})
        self.size = size
        self.window_ms = window_ms
        self.highest = highest

    def controller(self, slo: SLO, mode: str) -> PoolController:
        """Make the controller, exactly as a live pool would."""
        return PoolController(
            "simulated",
            slo=slo,
            setpoints=Setpoints(self.size, self.window_ms),
            bounds=Bounds(1, self.highest, 0.0, max(250.0, self.window_ms)),
            law=self.name,
            law_options=self.options,
            mode="merge" if mode == "merge" else "gate",
            now=0.0,
            wall=lambda: 0.0,
        )


def play(
    law: LawSpec,
    requests: Sequence[Request],
    plant: MergePlant,
    slo: SLO,
    *,
    horizon_s: float,
    seed: int,
    slots: int = 1,
    on_tick: OnTick | None = None,
) -> Record:
    """Play a day in front of upstreams that take whole batches."""
    controller = law.controller(slo, "merge")
    return simulate_merge(requests, controller, plant, horizon_s=horizon_s, seed=seed, slots=slots, on_tick=on_tick)


def play_engine(
    law: LawSpec,
    requests: Sequence[Request],
    plant: EnginePlant,
    slo: SLO,
    *,
    horizon_s: float,
    seed: int,
    on_tick: OnTick | None = None,
) -> Record:
    """Play a day in front of an engine that batches by itself."""
    controller = law.controller(slo, "gate")
    return simulate_gate(requests, controller, plant, horizon_s=horizon_s, seed=seed, on_tick=on_tick)
