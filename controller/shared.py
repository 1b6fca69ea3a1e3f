"""One pool steered by one process and served by several.

The leader sees everybody's observations and decides; followers admit and form batches with models of their own and
take their setpoints, promises and law from the leader. A follower that hears nothing goes on with what it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from controller.setpoints import Setpoints
from controller.slo import SLO

__all__ = ["Follower", "Leader", "orders"]

ACTOR = "leader"


class Leader(PoolController):
    """Decides for a pool whose requests arrive elsewhere."""

    def arrived(self, count: int) -> None:
        """Take note of requests that arrived at followers since the last time."""
        self._arrivals += count


class Follower(PoolController):
    """Serves a pool under setpoints that somebody else decides on."""

    _counted = 0
    _told = 0

    def take_arrivals(self) -> int:
        """Return how many requests arrived since the last time, for the leader."""
        total = self._counted + self._arrivals
        fresh, self._told = total - self._told, total
        return fresh

    def tick(self, now: float, load: Load) -> Decision | None:
        """Keep the models in time; the knobs are not turned here. Returns None."""
        arrivals = self._arrivals
        self._measure_arrivals(now)
        self._counted += arrivals - self._arrivals
        self._upstream.tick(now)
        self._cap_bound = False
        if self._promises.by_class:
            self._budget(now)
        if not self.frozen:
            self.express.tick(now, 1.0 - self.slo.quantile)
        return None

    def adopt(self, given: Mapping[str, Any], max_batch_size: int, now: float) -> None:
        """Take over what the leader decided (`orders`), with `max_batch_size` of the whole for this process."""
        slo = SLO(**given["slo"])
        if slo != self.slo:
            self.set_slo(slo, now, ACTOR)
        for klass in [own for own in self.class_slos if own not in given["class_slos"]]:
            self.set_slo(None, now, ACTOR, klass)
        for klass, targets in given["class_slos"].items():
            if SLO(**targets) != self.class_slos.get(klass):
                self.set_slo(SLO(**targets), now, ACTOR, klass)
        if (given["law"], given["law_options"]) != (self.law_name, self.law_options):
            self._hand_to(given["law"], given["law_options"], now, ACTOR)
        self.frozen = given["frozen"]
        wanted = Setpoints(max_batch_size, given["window_ms"], given["generation"])
        if wanted != self.setpoints:
            self._enter(wanted, now)


def orders(controller: PoolController) -> dict[str, Any]:
    """Return what a follower must know, JSON-ready."""
    setpoints = controller.setpoints
    return {
        "generation": setpoints.generation,
        "max_batch_size": setpoints.max_batch_size,
        "window_ms": setpoints.window_ms,
        "slo": _targets(controller.slo),
        "class_slos": {klass: _targets(slo) for klass, slo in controller.class_slos.items()},
        "law": controller.law_name,
        "law_options": dict(controller.law_options),
        "frozen": controller.frozen,
    }


def _targets(slo: SLO) -> dict[str, Any]:
    return {"e2e_s": slo.e2e_s, "ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s, "queue_s": slo.queue_s,
            "quantile": slo.quantile}  # fmt: skip
