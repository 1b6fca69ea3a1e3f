"""One pool's controller: observations in, setpoints and verdicts out.

Everything here is arithmetic on arguments: no clock is read and nothing waits, so the live proxy and the
simulator drive the very same object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from controller.base import Controller
from controller.decision import Decision
from controller.dispatch.dispatcher import Dispatcher
from controller.journal import Journal
from controller.load import Load
from controller.measure.evidence import Mode
from controller.measure.promises import Promises
from controller.observation import Observation
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.chosen_law import ChosenLaw
from controller.tune.experiment import Arm
from controller.tune.snapshot import snapshot
from controller.tune.tuner import Tuner
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Choice", "Load", "PoolController", "Verdict"]


@mypyc_attr(allow_interpreted_subclasses=True)
class PoolController(Controller):
    """Steers one pool: a `dispatcher` that requests pass, and a `tuner` that decides what it acts under.

    `law_options` go to the law, except for two that every law shares: `admission` (default True; False switches
    off refusing and shedding by prediction) and `late_target` (default 0.01; the late share among the admitted that
    predictions are corrected towards). `class_slos` are the promises of classes that have their own; `express_share`
    is where the express lane's share starts (`controller.dispatch.express`). `wall` stamps decisions for people and
    decides nothing. `journal` is handed what is asked and answered, line by line (`controller.journal`).
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
        journal: Callable[[str], object] | None = None,
    ) -> None:
        self._journal = None if journal is None else Journal(pool, journal)
        if self._journal is not None:
            self._journal.begun(
                slo=slo, setpoints=setpoints, bounds=bounds, law=law, law_options=law_options, mode=mode,
                class_slos=class_slos, express_share=express_share, now=now,
            )  # fmt: skip
        chosen = ChosenLaw(law, law_options)
        promises = Promises(slo, class_slos)
        self.pool = pool
        self.dispatcher = Dispatcher(mode, promises, setpoints, chosen.terms, express_share=express_share, now=now)
        self.tuner = Tuner(pool, self.dispatcher, chosen, bounds=bounds, now=now, wall=wall)
        self.decisions = self.tuner.decisions

    # The request path.

    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue, with these `waiting` (`Dispatcher.admit`)."""
        verdict = self.dispatcher.admit(job, now, load, waiting)
        if self._journal is not None:
            self._journal.wrote("admit", (job, now, load, waiting) if waiting else (job, now, load), verdict)
        return verdict

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed (`Dispatcher.choose`)."""
        choice = self.dispatcher.choose(candidates, now, load)
        if self._journal is not None:
            self._journal.wrote("choose", (candidates, now, load), choice)
        return choice

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
        if self._journal is not None:
            self._journal.wrote("sent", (job, upstream, now, inflight_tokens), None, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in the first token of what was sent to `upstream` at `dispatched`, as soon as it is there."""
        self.dispatcher.first_token(upstream, dispatched, now)
        if self._journal is not None:
            self._journal.wrote("first_token", (upstream, dispatched, now), None)

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that was sent to `upstream` and will be answered from elsewhere."""
        self.dispatcher.gone(upstream, dispatched)
        if self._journal is not None:
            self._journal.wrote("gone", (upstream, dispatched), None)

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""
        self.dispatcher.observe(obs, self.tuner.observe(obs))
        if self._journal is not None:
            self._journal.wrote("observe", (obs,), None)

    # Once a second.

    def tick(self, now: float, load: Load) -> Decision | None:
        """Retune the knobs; call once a second. Returns the decision when there was one."""
        cap_bound = self.dispatcher.tick(now)
        decision = self.tuner.tick(now, load, cap_bound=cap_bound)
        if self._journal is not None:
            self._journal.wrote("tick", (now, load), decision)
        return decision

    # What an operator changes.

    def set_slo(self, slo: SLO | None, now: float, actor: str, klass: str | None = None) -> Decision:
        """Change the promise, or one class's (`Tuner.set_slo`)."""
        return self._told("set_slo", (slo, now, actor, klass), self.tuner.set_slo(slo, now, actor, klass))

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs at `values`, whatever the law says. Raises ValueError for a bad name or value."""
        return self._told("pin", (values, now, actor), self.tuner.pin(values, now, actor))

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back to the law, all when `names` is None. They keep their values until it moves them."""
        wanted = None if names is None else list(names)
        return self._told("unpin", (wanted, now, actor), self.tuner.unpin(wanted, now, actor))

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law; they keep their values (`Tuner.set_law`)."""
        return self._told("set_law", (law, options, now, actor), self.tuner.set_law(law, options, now, actor))

    def set_shadow(self, law: str | None, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Let another law advise without turning anything; None ends it. Its advice is logged as `shadow.<rule>`."""
        return self._told("set_shadow", (law, options, now, actor), self.tuner.set_shadow(law, options, now, actor))

    def start_experiment(self, a: Arm, b: Arm, now: float, actor: str, *, seed: int = 0, **options: Any) -> Decision:
        """Let law `b` take turns with law `a` on live traffic until one is better (`Tuner.start_experiment`)."""
        decision = self.tuner.start_experiment(a, b, now, actor, seed=seed, **options)
        return self._told("start_experiment", (a, b, now, actor), decision, {"seed": seed, **options})

    def stop_experiment(self, now: float, actor: str) -> Decision:
        """End a running experiment in favour of arm `a`. Raises ValueError when none runs."""
        return self._told("stop_experiment", (now, actor), self.tuner.stop_experiment(now, actor))

    def freeze(self, frozen: bool, now: float, actor: str) -> Decision:
        """Stop the law from turning knobs, or let it go on. Admission and batch forming are not affected."""
        return self._told("freeze", (frozen, now, actor), self.tuner.freeze(frozen, now, actor))

    def roll_back(self, decision_id: int, now: float, actor: str) -> Decision:
        """Put the knobs that a decision moved, pinned or released back to what they were (`Tuner.roll_back`)."""
        return self._told("roll_back", (decision_id, now, actor), self.tuner.roll_back(decision_id, now, actor))

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that is not the controller's own (`Tuner.note`)."""
        decision = self.tuner.note(now, actor, rule, old, new, text)
        return self._told("note", (now, actor, rule, old, new, text), decision)

    # What is shown.

    @property
    def bounds(self) -> Bounds:
        """How far the knobs may be turned."""
        return self.tuner.pins.bounds

    @property
    def pins(self) -> Mapping[str, float]:
        """Knobs an operator holds, by name."""
        return self.tuner.pins.held

    @property
    def frozen(self) -> bool:
        """Whether an operator has stopped the law from turning knobs."""
        return self.tuner.frozen

    @property
    def law_name(self) -> str:
        """The law that turns the knobs."""
        return self.tuner.chosen.name

    @property
    def law_options(self) -> Mapping[str, Any]:
        """The options it was made with; an option left out has its default."""
        return dict(self.tuner.chosen.options)

    @property
    def standing_law(self) -> tuple[str, Mapping[str, Any]]:
        """The law that was chosen to stay, with its options: while two take turns, the one that it began with."""
        law = self.tuner.standing_law
        return law.name, dict(law.options)

    @property
    def shadow_name(self) -> str | None:
        """The law that only advises; None when there is none."""
        shadow = self.tuner.trials.shadow
        return None if shadow is None else shadow.name

    def quantiles(self, now: float) -> dict[str, Any]:
        """Return every latency's live quantiles with n and interval, JSON-ready; a part of `snapshot`."""
        return self.tuner.record.window.quantiles(now)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the whole state, JSON-ready: live quantiles with n and interval, counts, attainment, law, model."""
        return snapshot(self.dispatcher, self.tuner, now)

    def _told(
        self, call: str, args: tuple[Any, ...], decision: Decision, named: Mapping[str, Any] | None = None
    ) -> Decision:
        """Write down what an operator changed, where that is wanted."""
        if self._journal is not None:
            self._journal.wrote(call, args, decision, **(named or {}))
        return decision
