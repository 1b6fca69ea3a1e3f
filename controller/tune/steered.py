"""What is promised and set for a pool, and what an operator may change of it: promise, knobs, law, trials.

Every change is a decision that says who made it, and what was there before.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from mypy_extensions import mypyc_attr

from controller.decision import Decision, DecisionLog
from controller.laws import Advice, Law, check_steering, make_law
from controller.laws.registry import STEERING
from controller.measure.evidence import Evidence, Mode
from controller.measure.promises import Promises
from controller.measure.samples import GenerationSamples
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.experiment import Arm, Switchback
from controller.tune.follow_up import FollowUp
from controller.tune.knobs import KNOBS, check_knob, direction, moved, named, slo_dict

__all__ = ["RETARGET_S", "SteeredPool"]

RETARGET_S: Final = 10.0
"""For so long after a changed target it is judged on what was already seen."""

_BuiltLaw = tuple[Law, bool, float, Mapping[str, Any]]
"""A law, whether it refuses and sheds by prediction, its late target, and the options it was made with."""


def _build_law(name: str, options: Mapping[str, Any] | None) -> _BuiltLaw:
    own = dict(options or {})
    return make_law(name, own), bool(own.get("admission", True)), float(own.get("late_target", 0.01)), own


def _guarded(law: Law, options: Mapping[str, Any]) -> bool:
    """Whether cuts are judged by what they did. Those of a law for trials are explorations."""
    return bool(options.get("guards", True)) and law.name in STEERING


@mypyc_attr(allow_interpreted_subclasses=True)
class SteeredPool(ABC):
    """A pool's promise, knobs and law. What was seen of its requests is kept by who builds on it."""

    def __init__(
        self,
        pool: str,
        *,
        promises: Promises,
        setpoints: Setpoints,
        bounds: Bounds,
        law: str,
        law_options: Mapping[str, Any] | None,
        mode: Mode,
        now: float,
        wall: Callable[[], float],
    ) -> None:
        self.pool = pool
        self.mode = mode
        self.bounds = bounds
        self.decisions = DecisionLog(wall=wall)
        self.frozen = False
        self._promises = promises
        self._setpoints = setpoints
        self._samples = GenerationSamples(setpoints.generation, now)
        self._pins: dict[str, float] = {}
        self._law, self._admission_on, self._late_target, self._law_options = _build_law(law, law_options)
        self._guards_on = _guarded(self._law, self._law_options)
        self._shadow: Law | None = None
        self._experiment: Switchback | None = None
        self._arms: dict[str, _BuiltLaw] = {}
        self._follow_up = FollowUp(self.decisions)
        self._retarget: Literal["", "tightened", "loosened"] = ""
        self._retarget_at = now - RETARGET_S
        self._told_no_limits = False

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
    def standing_law(self) -> tuple[str, Mapping[str, Any]]:
        """The law that was chosen to stay, with its options: while two take turns, the one that it began with."""
        if self._experiment is None:
            return self._law.name, self.law_options
        law, _, _, options = self._arms["a"]
        return law.name, dict(options)

    @property
    def pins(self) -> Mapping[str, float]:
        """Knobs an operator holds, by name."""
        return dict(self._pins)

    # What an operator changes.

    def set_slo(self, slo: SLO | None, now: float, actor: str, klass: str | None = None) -> Decision:
        """Change the promise, or one class's. What was already seen is judged against it from the next tick on.

        A class that is given None has the pool's again. Raises ValueError when the pool is given None.
        """
        before, self._promises = self._promises, self._promises.replaced(klass, slo)
        old, new = (each.pool if klass is None else each.of(klass) for each in (before, self._promises))
        self._retarget = direction(old, new)
        self._retarget_at = now
        self._told_no_limits = False
        self._promise_changed(now)
        whose = "the target" if klass is None else f"the target of class {klass}"
        text = f"{actor} {self._retarget or 'restated'} {whose}{moved(old, new)}."
        shown_old = slo_dict(old) | before.whose(klass)
        shown_new = slo_dict(new) | self._promises.whose(klass)
        decision = self._note(now, actor, "admin.slo", shown_old, shown_new, text)
        self._follow_up.watch(decision.id, now, self._evidence(now), self._setpoints.max_batch_size, "movement")
        return decision

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs at `values`, whatever the law says. Raises ValueError for a bad name or value."""
        checked = {name: check_knob(name, value, self.bounds) for name, value in values.items()}
        old = self._knobs_and_pins()
        self._pins.update(checked)
        self._enter(self._pinned(self._setpoints), now)
        text = f"{actor} pinned {named(checked)}."
        return self._note(now, actor, "admin.pin", old, self._knobs_and_pins(), text)

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back to the law, all when `names` is None. They keep their values until it moves them."""
        wanted = list(self._pins) if names is None else list(names)
        for name in wanted:
            if name not in KNOBS:
                raise ValueError(f"unknown setpoint {name!r}; known are {', '.join(KNOBS)}")
        old = self._knobs_and_pins()
        released = [name for name in wanted if self._pins.pop(name, None) is not None]
        text = f"{actor} unpinned {', '.join(released) or 'nothing'}."
        return self._note(now, actor, "admin.unpin", old, self._knobs_and_pins(), text)

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law; they keep their values. An experiment ends.

        Raises ValueError for a bad name or option, and for a law that is for trials only.
        """
        check_steering(law)
        return self._hand_to(law, options, now, actor)

    def _hand_to(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        name, given = self.standing_law
        old = {"law": name, "options": given}
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
        """Let law `b` take turns with law `a` on live traffic until one is better (`controller.tune.experiment`).

        The winner stays; without one, when `b` breaks the promise or is for trials only, `a` does. `options` go to
        `Switchback`. Raises ValueError for a bad law or option, or while another experiment runs.
        """
        if self._experiment is not None:
            raise ValueError("an experiment is running; stop it first")
        check_steering(a.law)
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
        """Put the knobs that a decision moved, pinned or released back to what they were before it.

        Raises ValueError when it is not kept or moved none, and when an operator holds one that a law had moved.
        """
        found = [entry for entry in self.decisions.since(decision_id - 1) if entry.id == decision_id]
        if not found or "max_batch_size" not in found[0].old or found[0].rule.startswith("shadow."):
            raise ValueError(f"decision {decision_id} is not kept, or did not move the setpoints")
        was, became = found[0].old, found[0].new
        pins = self._pins_before(decision_id, was, became)
        moved_back = {name: was[name] for name in KNOBS if was[name] != became.get(name, was[name])}
        old, self._pins = self._knobs_and_pins(), pins
        size, window = moved_back.get("max_batch_size"), moved_back.get("window_ms")
        self._enter(self._bounded(Advice("admin.roll_back", "", size, window)), now)
        text = f"{actor} rolled decision {decision_id} back."
        return self._note(now, actor, "admin.roll_back", old, self._knobs_and_pins(), text)

    # What changes elsewhere with it.

    @abstractmethod
    def _promise_changed(self, now: float) -> None:
        """Judge what was already seen by the promises in force."""

    @abstractmethod
    def _law_changed(self) -> None:
        """Let everything else follow the law in force."""

    @abstractmethod
    def _evidence(self, now: float) -> Evidence:
        """Return what the present setpoints' samples prove."""

    # Inner workings.

    def _use(self, law: Law, admission: bool, late_target: float, options: Mapping[str, Any]) -> None:
        self._law, self._admission_on, self._late_target, self._law_options = law, admission, late_target, options
        self._guards_on = _guarded(law, options)
        self._law_changed()

    def _take_turns(self, trial: Switchback, now: float) -> Decision:
        """Begin the next block of an experiment, or end it."""
        old, seen = self._law.name, trial.as_dict()
        if trial.verdict == "running":
            self._use(*self._arms[trial.arm])
            text = f"The next block belongs to {self._law.name}."
            return self._note(now, "controller", "experiment.turn", {"law": old}, {"law": self._law.name}, text, seen)
        self._experiment = None
        candidate = trial.arms["b"].law
        why = {
            "a": "it kept more answers in time",
            "b": "it kept more answers in time",
            "no_difference": "no difference was found",
            "harm": f"{candidate} broke the promise",
        }[trial.verdict]
        winner = "b" if trial.verdict == "b" else "a"
        if winner == "b" and candidate not in STEERING:
            winner, why = "a", f"{candidate}, which kept more answers in time, is for trials only"
        self._use(*self._arms[winner])
        text = f"The experiment is over after {len(trial.differences)} pairs: {self._law.name} stays, for {why}."
        return self._note(now, "controller", "experiment.end", {"law": old}, {"law": self._law.name}, text, seen)

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

    def _knobs_and_pins(self) -> dict[str, Any]:
        return self._knobs() | {"pins": dict(self._pins)}

    def _pins_before(self, decision_id: int, was: Mapping[str, Any], became: Mapping[str, Any]) -> dict[str, float]:
        """Return the pins with those that a decision changed as they were before it. Raises ValueError."""
        pins = dict(self._pins)
        if "pins" not in was:
            held = [name for name in KNOBS if name in pins and was[name] != became.get(name, was[name])]
            if held:
                raise ValueError(
                    f"{' and '.join(held)} is pinned; unpin before decision {decision_id} is rolled back"
                )
            return pins
        before, after = was["pins"], became["pins"]
        for name in KNOBS:
            if before.get(name) != after.get(name):
                pins.pop(name, None)
                if name in before:
                    pins[name] = before[name]
        return pins

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision about the pool that is not the controller's own.

        Where requests are dispatched otherwise from now on, those of before say nothing for or against the setpoints.
        """
        if old.get("dispatch") != new.get("dispatch"):
            at = self._setpoints
            self._enter(Setpoints(at.max_batch_size, at.window_ms, at.generation + 1), now)
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
