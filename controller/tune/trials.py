"""Laws that are tried: one that advises without turning anything, and two that take turns on live traffic."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

from controller.laws import Law, check_steering
from controller.laws.registry import STEERING
from controller.measure.samples import Sample
from controller.tune.chosen_law import ChosenLaw
from controller.tune.experiment import Arm, Switchback

__all__ = ["Trials", "Turn"]


class Turn(NamedTuple):
    """Whose turn it is from now on, and why."""

    law: ChosenLaw
    rule: str
    text: str
    seen: Mapping[str, Any]


class Trials:
    """A pool's shadow and its experiment, of which there may be one each."""

    def __init__(self) -> None:
        self.shadow: Law | None = None
        """The law that only advises."""
        self.experiment: Switchback | None = None
        """What decides between two laws that take turns."""
        self._arms: dict[str, ChosenLaw] = {}

    @property
    def first(self) -> ChosenLaw | None:
        """The law that a running experiment began beside, which stays without a winner; None when none runs."""
        return None if self.experiment is None else self._arms["a"]

    def observe(self, sample: Sample, missed: bool) -> None:
        """Take in one request that reached the upstream, and whether it missed a target."""
        if self.shadow is not None:
            self.shadow.observe(sample)
        if self.experiment is not None and sample.served:
            self.experiment.observe(sample.dispatched, missed)

    def start(self, a: Arm, b: Arm, now: float, seed: int, options: Mapping[str, Any]) -> ChosenLaw:
        """Begin an experiment; returns the law whose turn it is first.

        Raises ValueError for a bad law or option, or while another experiment runs.
        """
        if self.experiment is not None:
            raise ValueError("an experiment is running; stop it first")
        check_steering(a.law)
        arms = {"a": ChosenLaw(a.law, a.options), "b": ChosenLaw(b.law, b.options)}
        trial = Switchback(a, b, now=now, rng=random.Random(seed), **options)
        self._arms, self.experiment = arms, trial
        return arms[trial.arm]

    def stop(self) -> ChosenLaw:
        """End a running experiment in favour of arm `a`, which is returned. Raises ValueError when none runs."""
        if self.experiment is None:
            raise ValueError("no experiment is running")
        self.experiment = None
        return self._arms["a"]

    def drop(self) -> None:
        """End an experiment, if one runs, in nobody's favour."""
        self.experiment = None

    def tick(self, now: float) -> Turn | None:
        """Begin the next block of an experiment, or end it, once that is due."""
        trial = self.experiment
        if trial is None or not trial.tick(now):
            return None
        seen = trial.as_dict()
        if trial.verdict == "running":
            law = self._arms[trial.arm]
            return Turn(law, "experiment.turn", f"The next block belongs to {law.name}.", seen)
        self.experiment = None
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
        law = self._arms[winner]
        text = f"The experiment is over after {len(trial.differences)} pairs: {law.name} stays, for {why}."
        return Turn(law, "experiment.end", text, seen)
