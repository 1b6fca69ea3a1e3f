"""One pool's controller: observations in, setpoints and verdicts out.

Everything here is arithmetic on arguments: no clock is read and nothing waits, so the live proxy and the
simulator drive the very same object.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from controller.admission import Admission
from controller.decision import Decision, DecisionLog
from controller.error_budget import ErrorBudget
from controller.evidence import Budget, Mode
from controller.experiment import Arm, Switchback
from controller.express import ExpressLane
from controller.follow_up import FollowUp
from controller.gate_upstream import GateUpstream
from controller.knobs import KNOBS, check_knob, direction, named, slo_dict
from controller.latency import LatencyWindow, attainment
from controller.laws import Advice, Law, View, make_law
from controller.load import Load
from controller.merge_upstream import MergeUpstream
from controller.observation import Observation, Result
from controller.promises import Promises
from controller.samples import GenerationSamples, Sample
from controller.setpoints import Bounds, Setpoints
from controller.sketch import Sketch
from controller.slo import SLO
from controller.upstream import Upstream
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Choice", "Load", "PoolController", "Verdict"]

RETARGET_S = 10.0
"""For so long after a changed target it is judged on what was already seen."""
_KEPT = 4096
_ACTIVE_S = 60.0
_NO_LIMITS = "No latency is promised that a batch size could break, so the law holds."
_UNLIMITED = Verdict(True, "no_admission", None, 0.0)


class PoolController:
    """Steers one pool: admits, forms batches, and retunes `max_batch_size` and `window_ms` once a second.

    `law_options` go to the law, except for two that every law shares: `admission` (default True; False switches
    off refusing and shedding by prediction) and `late_target` (default 0.01; the late share among the admitted that
    predictions are corrected towards). `class_slos` are the promises of classes that have their own; `express_share`
    is where the express lane's share starts (`controller.express`). `wall` stamps decisions for people and decides
    nothing.
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
        self.pool = pool
        self.mode = mode
        self.bounds = bounds
        self.decisions = DecisionLog(wall=wall)
        self.frozen = False
        self._promises = Promises(slo, class_slos)
        self.express = ExpressLane(express_share)
        self._budgets: dict[str, ErrorBudget] = {}
        self._whole = ErrorBudget(now)
        self._active: dict[str, float] = {}
        self._started = now
        self._setpoints = setpoints
        self._pins: dict[str, float] = {}
        self._law, self._admission_on, late_target, self._law_options = _build_law(law, law_options)
        self._shadow: Law | None = None
        self._experiment: Switchback | None = None
        self._arms: dict[str, _BuiltLaw] = {}
        self._upstream: Upstream = MergeUpstream(late_target) if mode == "merge" else GateUpstream(late_target)
        self._admission = Admission()
        self._window = LatencyWindow()
        self._kept: deque[Observation] = deque(maxlen=_KEPT)
        self._gaps = Sketch()
        self._samples = GenerationSamples(setpoints.generation, now)
        self._limits: tuple[Budget, ...] = ()
        self._class_limits: dict[str, tuple[Budget, ...]] = {}
        self._budget()
        self._follow_up = FollowUp(self.decisions)
        self._retarget: Literal["", "tightened", "loosened"] = ""
        self._retarget_at = now - RETARGET_S
        self._told_no_limits = False
        self._cap_bound = False
        self._arrivals = 0
        self._arrival_rate: float | None = None
        self._last_tick = now

    # What the proxy reads.

    @property
    def setpoints(self) -> Setpoints:
        """The knobs of the current generation, pins applied."""
        return self._setpoints

    @property
    def slo(self) -> SLO:
        """The promise in force."""
        return self._promises.pool

    @property
    def class_slos(self) -> Mapping[str, SLO]:
        """The promises of classes that have one of their own."""
        return self._promises.by_class

    def slo_of(self, klass: str) -> SLO:
        """Return what is promised to requests of `klass`."""
        return self._promises.of(klass)

    @property
    def law_name(self) -> str:
        """The law that turns the knobs."""
        return self._law.name

    @property
    def shadow_name(self) -> str | None:
        """The law that only advises; None when there is none."""
        return None if self._shadow is None else self._shadow.name

    @property
    def law_options(self) -> Mapping[str, Any]:
        """The options it was made with; an option left out has its default."""
        return dict(self._law_options)

    @property
    def pins(self) -> Mapping[str, float]:
        """Knobs an operator holds, by name."""
        return dict(self._pins)

    @property
    def arrival_rate(self) -> float:
        """Requests a second, refused ones included, averaged over a few seconds."""
        return self._arrival_rate or 0.0

    # The request path.

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""
        klass = obs.klass
        missed = self._window.add(obs, self._promises.of(klass))
        if obs.result is Result.OK or obs.result is Result.TIMEOUT:
            self._account(klass, obs, bool(missed))
        self._kept.append(obs)
        sample = Sample.of(obs)
        if sample is None:
            return
        self._law.observe(sample)
        if self._shadow is not None:
            self._shadow.observe(sample)
        self._samples.add(sample, obs.generation)
        if self._experiment is not None and obs.result is not Result.CANCELLED:
            self._experiment.observe(sample.dispatched, bool(missed))
        if obs.result is Result.OK or obs.result is Result.TIMEOUT:
            self._upstream.observe(obs, missed)

    def token(self, gap_s: float) -> None:
        """Take in one gap between two tokens of a running stream, in seconds."""
        self._gaps.add(max(0.0, gap_s))

    def admit(self, job: Job, now: float, load: Load) -> Verdict:
        """Say whether `job` may queue. Never refuses when idle, and lets a probe through now and then."""
        self._arrivals += 1
        if job.express:
            self.express.arrived(job)
        if not self._admission_on:
            return _UNLIMITED
        forecast = self._upstream.forecast(job, self._setpoints.max_batch_size, now, load)
        slo = self._promises.of(job.klass)
        verdict = self._admission.judge(job, now, load, slo, forecast, self._upstream.last_service_s)
        if verdict.admitted:
            self._upstream.admitted(job, self._promises)
        return verdict

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed.

        merge: one batch, or none while a call is in flight that is worth waiting for. gate: as many as there are
        free places.
        """
        cap = self._setpoints.max_batch_size
        if load.queued > cap and self.mode == "merge":
            self._cap_bound = True
        promises, law = self._promises, self._law
        choice = self._upstream.choose(
            candidates, cap, now, load, promises, form=law.forms_batches, shed=self._admission_on
        )
        if self.express.known:
            return self.express.bound(choice, candidates, cap, load, whole_batches=self.mode == "merge")
        return choice

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long after its arrival the first waiting item may be held for company, in seconds.

        0 once a full batch waits or while nobody is expected to come within the window, and never so long that the
        batch could not make an e2e target any more.
        """
        window = self._setpoints.window_ms / 1000.0
        if window <= 0.0 or load.queued >= self._setpoints.max_batch_size:
            return 0.0
        if self._arrival_rate is not None and self._arrival_rate * window < 1.0:
            return 0.0
        target = self.slo.e2e_s
        if target is None:
            return window
        ratio = self._upstream.predicted_ratio(load.queued + 1, self._limits)
        service = 0.0 if ratio is None else ratio * self._limits[0].limit_s
        return max(0.0, min(window, target - service))

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again: the predicted drain, within 1..60 s."""
        return min(60.0, max(1.0, self._upstream.drain_s(self._setpoints.max_batch_size, now, load)))

    # Once a second.

    def tick(self, now: float, load: Load) -> Decision | None:
        """Retune the knobs; call once a second. Returns the decision when there was one."""
        self._measure_arrivals(now)
        self._upstream.tick(now)
        if now >= self._retarget_at + RETARGET_S:
            self._retarget = ""
        if self._cap_bound and load.app_limited:
            load = replace(load, app_limited=False)
        self._cap_bound = False
        if self._promises.by_class:
            self._budget(now)
        view = self._view(now, load)
        evidence = view.evidence()
        self._follow_up.tick(now, evidence, self._setpoints.max_batch_size)
        self._consult_shadow(view)
        if self._experiment is not None and self._experiment.tick(now):
            return self._take_turns(self._experiment, now)
        if not self._limits and not self._told_no_limits:
            self._told_no_limits = True
            return self._note(now, "controller", "hold", self._knobs(), self._knobs(), _NO_LIMITS)
        shifted = None if self.frozen else self.express.tick(now, 1.0 - self.slo.quantile)
        if shifted is not None:
            before, after = {"express_share": shifted.old}, {"express_share": shifted.new}
            return self._note(now, "controller", shifted.rule, before, after, shifted.text, shifted.seen)
        advice = None if self.frozen else self._law.tick(view)
        if advice is None:
            return None
        old = self._knobs()
        changed = self._bounded(advice)
        if changed is self._setpoints:
            return None
        self._follow_up.superseded(now, evidence, self._setpoints.max_batch_size)
        self._enter(changed, now)
        decision = self._note(now, "controller", advice.rule, old, self._knobs(), advice.text, advice.seen)
        self._follow_up.watch(decision.id, now, evidence, changed.max_batch_size)
        return decision

    # What an operator changes.

    def set_slo(self, slo: SLO | None, now: float, actor: str, klass: str | None = None) -> Decision:
        """Change the promise, or one class's. What was already seen is judged against it from the next tick on.

        A class that is given None has the pool's again. Raises ValueError when the pool is given None.
        """
        before, self._promises = self._promises, self._promises.replaced(klass, slo)
        old, new = (each.pool if klass is None else each.of(klass) for each in (before, self._promises))
        self._retarget = direction(old, new)
        self._retarget_at = now
        self._budget(now)
        self._told_no_limits = False
        self._window = LatencyWindow()
        for obs in self._kept:
            if now - obs.done <= self._window.window_s:
                self._window.add(obs, self._promises.of(obs.klass))
        whose = "the target" if klass is None else f"the target of class {klass}"
        text = f"{actor} {self._retarget or 'restated'} {whose}."
        shown_old = slo_dict(old) | before.whose(klass)
        shown_new = slo_dict(new) | self._promises.whose(klass)
        decision = self._note(now, actor, "admin.slo", shown_old, shown_new, text)
        self._follow_up.watch(
            decision.id, now, self._view(now, Load()).evidence(), self._setpoints.max_batch_size, "movement"
        )
        return decision

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs at `values`, whatever the law says. Raises ValueError for a bad name or value."""
        checked = {name: check_knob(name, value, self.bounds) for name, value in values.items()}
        old = self._knobs()
        self._pins.update(checked)
        self._enter(self._pinned(self._setpoints), now)
        return self._note(now, actor, "admin.pin", old, self._knobs(), f"{actor} pinned {named(checked)}.")

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back to the law, all when `names` is None. They keep their values until it moves them."""
        wanted = list(self._pins) if names is None else list(names)
        for name in wanted:
            if name not in KNOBS:
                raise ValueError(f"unknown setpoint {name!r}; known are {', '.join(KNOBS)}")
        released = {name: self._pins.pop(name) for name in wanted if name in self._pins}
        text = f"{actor} unpinned {', '.join(released) or 'nothing'}."
        return self._note(now, actor, "admin.unpin", released, {}, text)

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law; they keep their values. Raises ValueError for a bad name or option."""
        old = {"law": self._law.name, "options": self.law_options}
        built = _build_law(law, options)
        self._experiment = None
        self._use(*built)
        new = {"law": law, "options": self.law_options}
        return self._note(now, actor, "admin.law", old, new, f"{actor} replaced {old['law']} by {law}.")

    def set_shadow(self, law: str | None, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Let another law advise without turning anything; None ends it. Its advice is logged as `shadow.<rule>`."""
        old = self._shadow.name if self._shadow is not None else None
        self._shadow = None if law is None else _build_law(law, options)[0]
        text = f"{actor} ended the shadow." if law is None else f"{actor} lets {law} advise in the shadow."
        return self._note(now, actor, "admin.shadow", {"shadow": old}, {"shadow": law}, text)

    def start_experiment(self, a: Arm, b: Arm, now: float, actor: str, *, seed: int = 0, **options: Any) -> Decision:
        """Let law `b` take turns with law `a` on live traffic until one is better (`controller.experiment`).

        The winner stays; without one, or when `b` breaks the promise, `a` does. `options` go to `Switchback`. Raises
        ValueError for a bad law or option, or while another experiment runs.
        """
        if self._experiment is not None:
            raise ValueError("an experiment is running; stop it first")
        arms = {"a": _build_law(a.law, a.options), "b": _build_law(b.law, b.options)}
        trial = Switchback(a, b, now=now, rng=random.Random(seed), **options)
        self._arms, self._experiment = arms, trial
        old = self._law.name
        self._use(*arms[trial.arm])
        turns = f"{trial.block_s:g} s each, beginning with {self._law.name}"
        text = f"{actor} lets {b.law} take turns with {a.law}, {turns}."
        return self._note(now, actor, "experiment.start", {"law": old}, {"law": self._law.name}, text)

    def stop_experiment(self, now: float, actor: str) -> Decision:
        """End a running experiment in favour of arm `a`. Raises ValueError when none runs."""
        if self._experiment is None:
            raise ValueError("no experiment is running")
        self._experiment = None
        self._use(*self._arms["a"])
        return self._note(
            now, actor, "experiment.stop", {}, {"law": self._law.name}, f"{actor} ended the experiment."
        )

    def freeze(self, frozen: bool, now: float, actor: str) -> Decision:
        """Stop the law from turning knobs, or let it go on. Admission and batch forming are not affected."""
        old, self.frozen = self.frozen, frozen
        text = f"{actor} {'froze' if frozen else 'released'} the setpoints."
        return self._note(now, actor, "admin.freeze", {"frozen": old}, {"frozen": frozen}, text)

    def roll_back(self, decision_id: int, now: float, actor: str) -> Decision:
        """Put the knobs back to where they were before a decision. Raises ValueError when it is not kept."""
        found = [entry for entry in self.decisions.since(decision_id - 1) if entry.id == decision_id]
        if not found or "max_batch_size" not in found[0].old:
            raise ValueError(f"decision {decision_id} is not kept, or did not move the setpoints")
        old = self._knobs()
        back = Advice("admin.roll_back", "", int(found[0].old["max_batch_size"]), float(found[0].old["window_ms"]))
        self._enter(self._bounded(back), now)
        text = f"{actor} rolled decision {decision_id} back."
        return self._note(now, actor, "admin.roll_back", old, self._knobs(), text)

    def corrupt_estimates(self, factor: float) -> None:
        """Multiply everything the models believe, for drills: shows that a wrong belief heals."""
        self._upstream.scale(factor)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the whole state, JSON-ready: live quantiles with n and interval, counts, attainment, law, model."""
        counts = self._window.counts(now)
        return {
            "pool": self.pool,
            "mode": self.mode,
            "law": {
                "name": self._law.name,
                "options": self.law_options,
                "state": self._law.state(),
                "admission": self._admission_on,
            },
            "shadow": None if self._shadow is None else self._shadow.name,
            "experiment": None if self._experiment is None else self._experiment.as_dict(),
            "frozen": self.frozen,
            "slo": slo_dict(self.slo),
            "classes": {
                klass: {"slo": slo_dict(slo := self.slo_of(klass)), "error_budget": spent.as_dict(now, slo.quantile)}
                for klass, spent in sorted(self._budgets.items())
            },
            "error_budget": self._whole.as_dict(now, self.slo.quantile),
            "express": self.express.as_dict(),
            "setpoints": self._knobs(),
            "bounds": {
                "max_batch_size": [self.bounds.min_batch_size, self.bounds.max_batch_size],
                "window_ms": [self.bounds.min_window_ms, self.bounds.max_window_ms],
            },
            "pins": dict(self._pins),
            "window_s": self._window.window_s,
            "quantiles": self._window.quantiles(now),
            "counts": {result.value: counts[result.value] for result in Result} | {"late": counts["late"]},
            "attainment": attainment(self.slo, counts),
            "arrival_rate": self.arrival_rate,
            "generation_samples": len(self._samples.current),
            "model": self._upstream.as_dict(),
        }

    # Inner workings.

    def _view(self, now: float, load: Load) -> View:
        return View(
            now=now,
            mode=self.mode,
            slo=self.slo,
            limits=self._limits,
            setpoints=self._setpoints,
            bounds=self.bounds,
            load=load,
            samples=self._samples,
            predicted_ratio=lambda size: self._upstream.predicted_ratio(size, self._limits),
            retarget=self._retarget,
            retarget_at=self._retarget_at,
            arrival_rate=self.arrival_rate,
            class_limits=self._class_limits,
        )

    def _account(self, klass: str, obs: Observation, late: bool) -> None:
        """Count an admitted request against its class's error budget and the lane it took."""
        spent = self._budgets.get(klass)
        if spent is None:
            spent = self._budgets[klass] = ErrorBudget(self._started)
        spent.add(obs.done, late)
        self._whole.add(obs.done, late)
        self.express.observe(klass, obs.dispatched, late)
        if self._promises.by_class:
            self._active[klass] = obs.done

    def _budget(self, now: float | None = None) -> None:
        """Work out what the promises leave to the upstream, of classes that had traffic in the last minute."""
        share = self._law.e2e_share
        active = [klass for klass, at in self._active.items() if now is not None and now - at < _ACTIVE_S]
        self._limits = self._promises.limits(self.mode, share, active)
        self._class_limits = self._promises.class_budgets(self.mode, share)

    def _measure_arrivals(self, now: float) -> None:
        elapsed = now - self._last_tick
        if elapsed > 0.0:
            rate = self._arrivals / elapsed
            self._arrival_rate = rate if self._arrival_rate is None else 0.8 * self._arrival_rate + 0.2 * rate
            self._arrivals = 0
            self._last_tick = now

    def _use(self, law: Law, admission: bool, late_target: float, options: Mapping[str, Any]) -> None:
        self._law, self._admission_on, self._law_options = law, admission, options
        self._upstream.late_target(late_target)
        self._budget()

    def _take_turns(self, trial: Switchback, now: float) -> Decision:
        """Begin the next block of an experiment, or end it."""
        old, seen = self._law.name, trial.as_dict()
        if trial.verdict == "running":
            self._use(*self._arms[trial.arm])
            text = f"The next block belongs to {self._law.name}."
            return self._note(now, "controller", "experiment.turn", {"law": old}, {"law": self._law.name}, text, seen)
        self._experiment = None
        winner = "b" if trial.verdict == "b" else "a"
        self._use(*self._arms[winner])
        why = {
            "a": "it kept more answers in time",
            "b": "it kept more answers in time",
            "no_difference": "no difference was found",
            "harm": f"{trial.arms['b'].law} broke the promise",
        }[trial.verdict]
        text = f"The experiment is over after {len(trial.differences)} pairs: {self._law.name} stays, for {why}."
        return self._note(now, "controller", "experiment.end", {"law": old}, {"law": self._law.name}, text, seen)

    def _consult_shadow(self, view: View) -> None:
        advice = None if self._shadow is None else self._shadow.tick(view)
        if advice is not None:
            new = {"max_batch_size": advice.max_batch_size, "window_ms": advice.window_ms}
            self._note(view.now, "shadow", f"shadow.{advice.rule}", self._knobs(), new, advice.text, advice.seen)

    def _bounded(self, advice: Advice) -> Setpoints:
        size, window = advice.max_batch_size, advice.window_ms
        changed = self._setpoints.changed(
            max_batch_size=None if size is None else self.bounds.clamp_batch_size(size),
            window_ms=None if window is None else self.bounds.clamp_window_ms(window),
        )
        return self._pinned(changed)

    def _pinned(self, wanted: Setpoints) -> Setpoints:
        size = self._pins.get("max_batch_size", wanted.max_batch_size)
        return self._setpoints.changed(
            max_batch_size=int(size), window_ms=self._pins.get("window_ms", wanted.window_ms)
        )

    def _enter(self, setpoints: Setpoints, now: float) -> None:
        if setpoints is not self._setpoints:
            self._setpoints = setpoints
            self._samples.advance(setpoints.generation, now)

    def _knobs(self) -> dict[str, Any]:
        return {name: getattr(self._setpoints, name) for name in KNOBS} | {"generation": self._setpoints.generation}

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that is not the controller's own."""
        return self._note(now, actor, rule, old, new, text)

    def _note(
        self,
        now: float,
        actor: str,
        rule: str,
        old: Mapping[str, Any],
        new: Mapping[str, Any],
        text: str,
        seen: Mapping[str, Any] | None = None,
    ) -> Decision:
        return self.decisions.add(
            at=now, pool=self.pool, rule=rule, law=self._law.name, actor=actor, seen=seen, old=old, new=new, text=text
        )


_BuiltLaw = tuple[Law, bool, float, Mapping[str, Any]]
"""A law, whether it refuses and sheds by prediction, its late target, and the options it was made with."""


def _build_law(name: str, options: Mapping[str, Any] | None) -> _BuiltLaw:
    own = dict(options or {})
    return make_law(name, own), bool(own.get("admission", True)), float(own.get("late_target", 0.01)), own
