"""What a law sees once a tick, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

from controller.load import Load
from controller.measure.evidence import Budget, Evidence, Mode, weigh
from controller.measure.samples import GenerationSamples, Sample
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO

__all__ = ["FRESH_S", "Advice", "Law", "View"]

FRESH_S: Final = 30.0
"""For so long lateness is evidence against the setpoints it was seen under."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything a law may look at. It must not keep it: `samples` goes on changing."""

    now: float
    mode: Mode
    slo: SLO
    limits: tuple[Budget, ...]
    """What the targets leave to the upstream; empty when nothing is promised that a batch size could break."""
    setpoints: Setpoints
    bounds: Bounds
    load: Load
    samples: GenerationSamples
    predicted_ratio: Callable[[int], float | None]
    """The model's quantile of upstream time over its budget at another batch size; None when unidentified."""
    retarget: Literal["", "tightened", "loosened"] = ""
    """The target was changed a moment ago, and in which direction."""
    retarget_at: float = -1.0
    """When it was changed."""
    in_vain: bool = False
    """The last cuts changed nothing and were undone, so that lateness now says nothing about the size."""
    class_limits: Mapping[str, tuple[Budget, ...]] = field(default_factory=dict)
    """The budgets of classes with a promise of their own."""

    @property
    def app_limited(self) -> bool:
        """Whether the setpoints never held work back, so that growing cannot help and cannot be judged."""
        return self.load.app_limited

    def evidence(self, at_least: int = 0, last: int | None = None, *, aged: bool = False) -> Evidence:
        """Weigh the samples of this generation no older than FRESH_S; with `last`, only so many of the newest.

        With `aged` those of any age count: what was in time long ago still adds up, what was late does not hold.
        While a changed target has not moved anything yet and this generation has fewer than `at_least`, those of the
        one before count, too: the target moved, not the setpoints, so nobody is blamed wrongly.
        """
        samples = self.samples.recent(at_least if self.samples.since <= self.retarget_at else 0)
        if not aged and samples and samples[0].done < self.now - FRESH_S:
            samples = [sample for sample in samples if sample.done >= self.now - FRESH_S]
        return weigh(
            samples if last is None else list(samples)[-last:],
            self.limits,
            self.load,
            self.now,
            since=self.samples.since,
            longest_s=self.samples.longest_s,
            last_done=self.samples.last_done,
            least_batch=self.setpoints.max_batch_size / 2.0,
            by_class=self.class_limits,
            alone=self.mode == "gate",
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """New values for the knobs, and why."""

    rule: str
    text: str
    """One plain sentence."""
    max_batch_size: int | None = None
    window_ms: float | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Law(Protocol):
    """A control law: pure, told everything, asked once a tick.

    A class may declare `options`, a tuple of `controller.laws.options.Option`; what it is told is checked then.
    One that declares `trials_only` is never given a pool: it advises in the shadow and takes part in experiments.
    The caller brings the advice into bounds, honours pins, and keeps only samples of the generation in force in
    `View.samples`.
    """

    name: ClassVar[str]
    forms_batches: ClassVar[bool]
    """Whether batches are formed by deadline (`controller.dispatch.former`) instead of first come, first served."""
    e2e_share: ClassVar[float | None]
    """The part of an e2e target that one upstream call may take; None for the mode's default."""

    def observe(self, sample: Sample) -> None:
        """Take in one request that reached the upstream, of whatever generation."""
        ...

    def tick(self, view: View) -> Advice | None:
        """Return new values, or None to hold."""
        ...

    def state(self) -> dict[str, Any]:
        """Return what the admin API shows of the law."""
        ...
