"""The half of a controller that decides: once a second by a law, and whenever an operator says so.

Every change is a decision that says who made it, on what evidence, and what was there before. What is decided is put
in force at a `Dispatcher`, whose models in turn say what another size would do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from controller.decision import Decision, DecisionLog
from controller.dispatch.dispatcher import Dispatcher
from controller.laws import Advice, View, check_steering
from controller.load import Load
from controller.measure.evidence import Evidence
from controller.measure.samples import GenerationSamples, Sample
from controller.measure.slo_record import SloRecord
from controller.observation import Observation
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.chosen_law import ChosenLaw
from controller.tune.cut_guard import CutGuard
from controller.tune.experiment import Arm
from controller.tune.follow_up import FollowUp
from controller.tune.knobs import KNOBS, direction, moved, named, slo_dict
from controller.tune.pins import Pins
from controller.tune.trials import Trials, Turn

__all__ = ["Tuner"]

_RETARGET_S: Final = 10.0
"""For so long after a changed target it is judged on what was already seen."""
_NO_LIMITS: Final = "No latency is promised that a batch size could break, so the law holds."


class Tuner:
    """Decides about one pool: its SLOs, setpoints and law. `chosen` is the law it begins with.

    It hears of each finished request by `observe`, and of each second by `tick`. `wall` stamps decisions for people
    and decides nothing.
    """

    def __init__(
        self,
        pool: str,
        dispatcher: Dispatcher,
        chosen: ChosenLaw,
        *,
        bounds: Bounds,
        now: float,
        wall: Callable[[], float],
    ) -> None:
        self.pool = pool
        self.decisions = DecisionLog(wall=wall)
        self.frozen = False
        """Whether an operator has stopped the law from turning knobs."""
        self.chosen = chosen
        """The law in force."""
        self.pins = Pins(bounds)
        self.trials = Trials()
        self.record = SloRecord(now)
        self.samples = GenerationSamples(dispatcher.setpoints.generation, now)
        self.guard = CutGuard()
        self._dispatcher = dispatcher
        self._follow_up = FollowUp(self.decisions)
        self._retarget: Literal["", "tightened", "loosened"] = ""
        self._retarget_at = now - _RETARGET_S
        self._told_no_limits = False

    @property
    def standing_law(self) -> ChosenLaw:
        """The law that was chosen to stay: while two take turns, the one that it began with."""
        first = self.trials.first
        return self.chosen if first is None else first

    # What is seen.

    def observe(self, obs: Observation) -> tuple[str, ...]:
        """Take in one finished request; returns the targets it missed."""
        missed = self.record.add(obs, self._dispatcher.promises)
        sample = Sample.of(obs)
        if sample is not None:
            self.chosen.law.observe(sample)
            self.samples.add(sample, obs.generation)
            self.trials.observe(sample, bool(missed))
        return missed

    # What an operator changes.

    def set_slo(self, slo: SLO | None, now: float, actor: str, klass: str | None = None) -> Decision:
        """Change the promise, or one class's. What was already seen is judged against it from the next tick on.

        A class that is given None has the pool's again. Raises ValueError when the pool is given None.
        """
        dispatcher = self._dispatcher
        before = dispatcher.promises
        after = before.replaced(klass, slo)
        old, new = (each.pool if klass is None else each.of(klass) for each in (before, after))
        self._retarget = direction(old, new)
        self._retarget_at = now
        self._told_no_limits = False
        dispatcher.set_slos(after, now)
        self.record.recount(after, now)
        whose = "the target" if klass is None else f"the target of class {klass}"
        text = f"{actor} {self._retarget or 'restated'} {whose}{moved(old, new)}."
        shown_old = slo_dict(old) | before.whose(klass)
        shown_new = slo_dict(new) | after.whose(klass)
        decision = self._note(now, actor, "admin.slo", shown_old, shown_new, text)
        evidence = self._view(now, Load()).evidence()
        self._follow_up.watch(decision.id, now, evidence, dispatcher.setpoints.max_batch_size, "movement")
        return decision

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs at `values`, whatever the law says. Raises ValueError for a bad name or value."""
        old = self._knobs_and_pins()
        held = self.pins.hold(values)
        setpoints = self._dispatcher.setpoints
        self._enter(self.pins.applied(setpoints, setpoints), now)
        text = f"{actor} pinned {named(held)}."
        return self._note(now, actor, "admin.pin", old, self._knobs_and_pins(), text)

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back to the law, all when `names` is None. They keep their values until it moves them."""
        old = self._knobs_and_pins()
        text = f"{actor} unpinned {', '.join(self.pins.release(names)) or 'nothing'}."
        return self._note(now, actor, "admin.unpin", old, self._knobs_and_pins(), text)

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law; they keep their values. An experiment ends.

        Raises ValueError for a bad name or option, and for a law that is for trials only.
        """
        check_steering(law)
        standing, chosen = self.standing_law, ChosenLaw(law, options)
        self.trials.drop()
        self._use(chosen)
        old = {"law": standing.name, "options": dict(standing.options)}
        new = {"law": law, "options": dict(chosen.options)}
        return self._note(now, actor, "admin.law", old, new, f"{actor} replaced {standing.name} by {law}.")

    def set_shadow(self, law: str | None, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Let another law advise without turning anything; None ends it. Its advice is logged as `shadow.<rule>`."""
        shadow = self.trials.shadow
        old = None if shadow is None else shadow.name
        self.trials.shadow = None if law is None else ChosenLaw(law, options).law
        text = f"{actor} ended the shadow." if law is None else f"{actor} lets {law} advise in the shadow."
        return self._note(now, actor, "admin.shadow", {"shadow": old}, {"shadow": law}, text)

    def start_experiment(self, a: Arm, b: Arm, now: float, actor: str, *, seed: int = 0, **options: Any) -> Decision:
        """Let law `b` take turns with law `a` on live traffic until one is better (`controller.tune.experiment`).

        The winner stays; without one, when `b` breaks the promise or is for trials only, `a` does. `options` go to
        `Switchback`. Raises ValueError for a bad law or option, or while another experiment runs.
        """
        old = self.chosen.name
        self._use(self.trials.start(a, b, now, seed, options))
        trial = self.trials.experiment
        assert trial is not None
        text = (
            f"{actor} lets {b.law} take turns with {a.law}, "
            f"{trial.block_s:g} s each, beginning with {self.chosen.name}."
        )
        return self._note(now, actor, "experiment.start", {"law": old}, {"law": self.chosen.name}, text)

    def stop_experiment(self, now: float, actor: str) -> Decision:
        """End a running experiment in favour of arm `a`. Raises ValueError when none runs."""
        self._use(self.trials.stop())
        text = f"{actor} ended the experiment."
        return self._note(now, actor, "experiment.stop", {}, {"law": self.chosen.name}, text)

    def freeze(self, frozen: bool, now: float, actor: str) -> Decision:
        """Stop the law from turning knobs, or let it go on. Admission and batch forming are not affected."""
        old, self.frozen = self.frozen, frozen
        text = f"{actor} {'froze' if frozen else 'released'} the setpoints."
        return self._note(now, actor, "admin.freeze", {"frozen": old}, {"frozen": frozen}, text)

    def roll_back(self, decision_id: int, now: float, actor: str) -> Decision:
        """Put the knobs that a decision moved, pinned or released back to what they were before it.

        Raises ValueError when it is not kept or moved none, and when an operator holds one that a law had moved.
        """
        found = [entry for entry in self.decisions.since(decision_id - 1) if entry.id == decision_id]
        if not found or "max_batch_size" not in found[0].old or found[0].rule.startswith("shadow."):
            raise ValueError(f"decision {decision_id} is not kept, or did not move the setpoints")
        was, became = found[0].old, found[0].new
        pins = self.pins.before(decision_id, was, became)
        moved_back = {name: was[name] for name in KNOBS if was[name] != became.get(name, was[name])}
        old = self._knobs_and_pins()
        self.pins.replace(pins)
        size, window = moved_back.get("max_batch_size"), moved_back.get("window_ms")
        back = Advice("admin.roll_back", "", size, window)
        self._enter(self.pins.bounded(self._dispatcher.setpoints, back), now)
        text = f"{actor} rolled decision {decision_id} back."
        return self._note(now, actor, "admin.roll_back", old, self._knobs_and_pins(), text)

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that is not the controller's own.

        Where requests are dispatched otherwise from now on, those of before say nothing for or against the setpoints.
        """
        if old.get("dispatch") != new.get("dispatch"):
            self._enter(self._dispatcher.setpoints.renewed(), now)
        return self._note(now, actor, rule, old, new, text)

    # Once a second.

    def tick(self, now: float, load: Load, *, cap_bound: bool) -> Decision | None:
        """Retune the knobs; returns the decision when there was one.

        `cap_bound`: the cap held work back since the last time, as the dispatcher saw.
        """
        if now >= self._retarget_at + _RETARGET_S:
            self._retarget = ""
        if cap_bound and load.app_limited:
            load = replace(load, app_limited=False)
        dispatcher = self._dispatcher
        view = self._view(now, load)
        evidence = view.evidence()
        self._follow_up.tick(now, evidence, dispatcher.setpoints.max_batch_size)
        self._consult_shadow(view)
        turn = self.trials.tick(now)
        if turn is not None:
            return self._take_turn(turn, now)
        if not dispatcher.limits and not self._told_no_limits:
            self._told_no_limits = True
            return self._note(now, "controller", "hold", self._knobs(), self._knobs(), _NO_LIMITS)
        shifted = None if self.frozen else dispatcher.shift_express(now)
        if shifted is not None:
            before, after = {"express_share": shifted.old}, {"express_share": shifted.new}
            return self._note(now, "controller", shifted.rule, before, after, shifted.text, shifted.seen)
        advice = self._advice(view)
        return None if advice is None else self._heed(advice, now, evidence)

    # Inner workings.

    def _heed(self, advice: Advice, now: float, evidence: Evidence) -> Decision | None:
        """Turn the knobs as advised; returns None when that changes nothing."""
        present = self._dispatcher.setpoints
        changed = self.pins.bounded(present, advice)
        if changed is present:
            return None
        old = self._knobs()
        self._follow_up.superseded(now, evidence, present.max_batch_size)
        self._enter(changed, now)
        decision = self._note(now, "controller", advice.rule, old, self._knobs(), advice.text, advice.seen)
        self._follow_up.watch(decision.id, now, evidence, changed.max_batch_size)
        return decision

    def _advice(self, view: View) -> Advice | None:
        """Ask the law, and let what it says be judged by what its cuts did so far."""
        if self.frozen:
            return None
        advice = self.chosen.law.tick(view)
        if not self.chosen.guarded or self.pins.holds("max_batch_size"):
            return advice
        return self.guard.review(view, advice, self.chosen.name)

    def _consult_shadow(self, view: View) -> None:
        shadow = self.trials.shadow
        advice = None if shadow is None else shadow.tick(view)
        if advice is not None:
            new = {"max_batch_size": advice.max_batch_size, "window_ms": advice.window_ms}
            self._note(view.now, "shadow", f"shadow.{advice.rule}", self._knobs(), new, advice.text, advice.seen)

    def _take_turn(self, turn: Turn, now: float) -> Decision:
        old = self.chosen.name
        self._use(turn.law)
        return self._note(now, "controller", turn.rule, {"law": old}, {"law": turn.law.name}, turn.text, turn.seen)

    def _use(self, chosen: ChosenLaw) -> None:
        self.chosen = chosen
        self._dispatcher.follow(chosen.terms)

    def _enter(self, setpoints: Setpoints, now: float) -> None:
        if setpoints is not self._dispatcher.setpoints:
            self._dispatcher.enter(setpoints)
            self.samples.advance(setpoints.generation, now)

    def _view(self, now: float, load: Load) -> View:
        dispatcher = self._dispatcher
        return View(
            now=now,
            mode=dispatcher.mode,
            slo=dispatcher.promises.pool,
            limits=dispatcher.limits,
            setpoints=dispatcher.setpoints,
            bounds=self.pins.bounds,
            load=load,
            samples=self.samples,
            predicted_ratio=dispatcher.predicted_ratio,
            retarget=self._retarget,
            retarget_at=self._retarget_at,
            in_vain=self.guard.holding,
            class_limits=dispatcher.class_limits,
        )

    def _knobs(self) -> dict[str, Any]:
        return self._dispatcher.setpoints.as_dict()

    def _knobs_and_pins(self) -> dict[str, Any]:
        return self._knobs() | {"pins": self.pins.held}

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
            at=now,
            pool=self.pool,
            rule=rule,
            law=self.chosen.name,
            actor=actor,
            seen=seen,
            old=old,
            new=new,
            text=text,
        )
