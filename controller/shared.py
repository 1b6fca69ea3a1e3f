"""One pool steered by one process and served by several.

The leader sees everybody's observations and decides; followers admit and form batches with models of their own and
take their setpoints, promises and law from the leader. A follower that hears nothing goes on with what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from controller.base import Controller
from controller.decision import Decision, DecisionLog
from controller.dispatch.dispatcher import Dispatcher
from controller.load import Load
from controller.loop import PoolController
from controller.measure.evidence import Mode
from controller.measure.latency import violations
from controller.measure.promises import Promises
from controller.observation import Observation
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.chosen_law import ChosenLaw
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Follower", "Leader", "orders"]


class Leader(PoolController):
    """Decides for a pool whose requests arrive elsewhere."""

    def arrived(self, count: int) -> None:
        """Take note of requests that arrived at followers since the last time."""
        self.dispatcher.arrived(count)


class Follower(Controller):
    """Serves a pool under setpoints, promises and a law's terms that somebody else decides on.

    It takes what a `PoolController` takes, to begin with the same; `bounds` are the leader's to keep.
    """

    def __init__(
        self,
        pool: str,
        *,
        slo: SLO,
        setpoints: Setpoints,
        bounds: Bounds,
        law: str = "aimd",
        law_options: Mapping[str, Any] | None = None,
        mode: Mode = "merge",
        class_slos: Mapping[str, SLO] | None = None,
        express_share: float = 0.5,
        now: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        chosen = ChosenLaw(law, law_options)
        promises = Promises(slo, class_slos)
        self.pool = pool
        self.decisions = DecisionLog(wall=wall)
        self.dispatcher = Dispatcher(mode, promises, setpoints, chosen.terms, express_share=express_share, now=now)
        self._chosen = chosen
        self._frozen = False
        self._told = 0

    @property
    def law_name(self) -> str:
        """The law that turns the knobs, elsewhere."""
        return self._chosen.name

    @property
    def law_options(self) -> Mapping[str, Any]:
        """The options it was made with."""
        return dict(self._chosen.options)

    def take_arrivals(self) -> int:
        """Return how many requests arrived since the last time, for the leader."""
        total = self.dispatcher.arrivals
        fresh, self._told = total - self._told, total
        return fresh

    def adopt(self, given: Mapping[str, Any], max_batch_size: int, now: float) -> None:
        """Take over what the leader decided (`orders`), with `max_batch_size` of the whole for this process.

        Raises ValueError, with nothing changed, for a law or an SLO that is none.
        """
        dispatcher = self.dispatcher
        slo, by_class = SLO(**given["slo"]), {name: SLO(**targets) for name, targets in given["class_slos"].items()}
        chosen = self._chosen
        if (given["law"], given["law_options"]) != (chosen.name, chosen.options):
            chosen = ChosenLaw(given["law"], given["law_options"])
        if slo != self.slo or by_class != self.class_slos:
            dispatcher.set_slos(Promises(slo, by_class), now)
        if chosen is not self._chosen:
            self._chosen = chosen
            dispatcher.follow(chosen.terms)
        self._frozen = given["frozen"]
        wanted = Setpoints(max_batch_size, given["window_ms"], given["generation"])
        if wanted != dispatcher.setpoints:
            dispatcher.enter(wanted)

    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue, with these `waiting` (`Dispatcher.admit`)."""
        return self.dispatcher.admit(job, now, load, waiting)

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed (`Dispatcher.choose`)."""
        return self.dispatcher.choose(candidates, now, load)

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long after its arrival the first waiting item may be held for company, in seconds."""
        return self.dispatcher.window_s(now, load)

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again: the predicted drain, within 1..60 s."""
        return self.dispatcher.retry_after_s(now, load)

    def sent(
        self, job: Job, upstream: str, now: float, inflight_tokens: float = 0.0, *, streamed: bool = True
    ) -> None:
        """Take note of a request that was sent to `upstream` by itself (`Dispatcher.sent`)."""
        self.dispatcher.sent(job, upstream, now, inflight_tokens, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in the first token of what was sent to `upstream` at `dispatched`, as soon as it is there."""
        self.dispatcher.first_token(upstream, dispatched, now)

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that was sent to `upstream` and will be answered from elsewhere."""
        self.dispatcher.gone(upstream, dispatched)

    def observe(self, obs: Observation) -> None:
        """Take in one finished request. The leader counts it; here it teaches the models."""
        self.dispatcher.observe(obs, violations(self.slo_of(obs.klass), obs))

    def tick(self, now: float, load: Load) -> Decision | None:
        """Keep the models in time; the knobs are not turned here. Returns None."""
        self.dispatcher.tick(now)
        if not self._frozen:
            self.dispatcher.shift_express(now)
        return None

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that was made here.

        Where requests are dispatched otherwise from now on, a new generation begins, until the leader names one.
        """
        if old.get("dispatch") != new.get("dispatch"):
            self.dispatcher.enter(self.dispatcher.setpoints.renewed())
        return self.decisions.add(
            at=now, pool=self.pool, rule=rule, law=self.law_name, actor=actor, old=old, new=new, text=text
        )


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
