"""The half of a controller that requests pass: who may come, who goes next, and what their answers teach.

It acts under SLOs, setpoints and a law's terms that others decide on (`controller.tune.tuner`), and keeps the models
that its judgement rests on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from controller.dispatch.admission import Admission
from controller.dispatch.express import ExpressLane, Shift
from controller.dispatch.gate_upstream import GateUpstream
from controller.dispatch.merge_upstream import MergeUpstream
from controller.dispatch.room import used_share
from controller.dispatch.upstream import Upstream
from controller.load import Load
from controller.measure.evidence import Budget, Mode, decided_by_length
from controller.measure.promises import Promises
from controller.observation import Observation, Result
from controller.setpoints import Setpoints
from controller.slo import SLO
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Dispatcher", "LawTerms"]

_TYPICAL: Final = 16
"""Answers before any length is called typical."""
_PACE_ONLY: Final[tuple[str, ...]] = ("tpot",)
_WHOLE_ONLY: Final[tuple[str, ...]] = ("e2e",)
_ACTIVE_S: Final = 60.0
"""For so long after its last answer a class's SLO bounds what the upstream may take."""
_UNLIMITED: Final = Verdict(True, "no_admission", None, 0.0)
_OK: Final = Result.OK
_TIMEOUT: Final = Result.TIMEOUT
_FAILED: Final = Result.FAILED
_REFUSED: Final = Result.REFUSED
_SHED: Final = Result.SHED
_CANCELLED: Final = Result.CANCELLED


class LawTerms(NamedTuple):
    """What a law asks of the dispatcher under it."""

    forms_batches: bool
    """Whether batches are formed by deadline instead of first come, first served."""
    admission: bool
    """Whether the hopeless are refused and shed."""
    late_target: float
    """The late share among the admitted that predictions are corrected towards."""
    e2e_share: float | None
    """The part of an e2e target that one upstream call may take; None for the mode's default."""


class Dispatcher:
    """Admits, forms batches, and learns from what comes back. Times are seconds of one monotonic clock.

    `promises`, `setpoints` and `limits` (what the SLOs leave to the upstream) are for all to read; they change by
    `set_slos`, `enter` and `follow` alone, which belong to the one that decides.
    """

    def __init__(
        self,
        mode: Mode,
        promises: Promises,
        setpoints: Setpoints,
        terms: LawTerms,
        *,
        express_share: float,
        now: float,
    ) -> None:
        self.mode = mode
        self.promises = promises
        self.setpoints = setpoints
        self.limits: tuple[Budget, ...] = ()
        self.class_limits: dict[str, tuple[Budget, ...]] = {}
        """What the SLOs leave to the upstream, of classes that have one of their own."""
        self.express = ExpressLane(express_share)
        self.admission = Admission()
        self.upstream: Upstream = (
            MergeUpstream(terms.late_target) if mode == "merge" else GateUpstream(terms.late_target)
        )
        self._gated = mode == "gate"
        self._terms = terms
        self._forms = terms.forms_batches
        self._sheds = terms.admission
        self._tokens: deque[int] = deque(maxlen=100)
        """How long the latest answers were; few ask, and only then is it sorted."""
        self._active: dict[str, float] = {}
        """When each class was answered last, where any class has an SLO of its own."""
        self._cap_bound = False
        self._arrivals = 0
        self._arrivals_before = 0
        self._arrival_rate: float | None = None
        self._last_tick = now
        self._budget(None)

    # The request path.

    @property
    def weighs_waiting(self) -> bool:
        """Whether `admit` depends on who waits, and not only on how many."""
        return self._forms and self._sheds and self.upstream.weighs_waiting

    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue. Never refuses when idle, and lets a probe through now and then.

        `waiting` are those in front of it that are dispatched alike, in any order; it suffices to name them while
        `weighs_waiting`.
        """
        self._arrivals += 1
        if job.express:
            self.express.arrived(job)
        if not self._sheds:
            return _UNLIMITED
        upstream, promises = self.upstream, self.promises
        cap = self.setpoints.max_batch_size
        forecast = upstream.forecast(job, cap, now, load, promises, waiting, form=self._forms)
        awaited_s = 0.0 if forecast is None or load.idle else upstream.awaited_s(now)
        slo = promises.of(job.klass)
        return self.admission.judge(job, now, load, slo, forecast, upstream.last_service_s, awaited_s)

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say how many of the ordered `candidates` to send now, and which to shed.

        merge: one batch, or none while a call is in flight that is worth waiting for. gate: as many as there are
        free places.
        """
        cap, gated, promises, shed = self.setpoints.max_batch_size, self._gated, self.promises, self._sheds
        if load.queued > cap and not gated:
            self._cap_bound = True
        if shed and gated and self._ample(promises.pool, now):
            # While there is time to spare, a model that calls somebody hopeless is wrong.
            shed = False
        choice = self.upstream.choose(candidates, cap, now, load, promises, form=self._forms, shed=shed)
        if self.express.known:
            return self.express.bound(choice, candidates, cap, load, whole_batches=not gated)
        return choice

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long after its arrival the first waiting item may be held for company, in seconds.

        0 once a full batch waits or while nobody is expected to come within the window, and never so long that the
        batch could not make an e2e target any more.
        """
        window = self.setpoints.window_ms / 1000.0
        if window <= 0.0 or load.queued >= self.setpoints.max_batch_size:
            return 0.0
        if self._arrival_rate is not None and self._arrival_rate * window < 1.0:
            return 0.0
        target = self.promises.pool.e2e_s
        if target is None:
            return window
        ratio = self.predicted_ratio(load.queued + 1)
        service = 0.0 if ratio is None else ratio * self.limits[0].limit_s
        return max(0.0, min(window, target - service))

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when a refused caller should try again: the predicted drain, within 1..60 s."""
        return min(60.0, max(1.0, self.upstream.drain_s(self.setpoints.max_batch_size, now, load)))

    def sent(
        self, job: Job, upstream: str, now: float, inflight_tokens: float = 0.0, *, streamed: bool = True
    ) -> None:
        """Take note of a request that was sent to `upstream` by itself, beside others with `inflight_tokens`.

        Those are 0 when nobody counts them. `streamed`: whether its first token will be told.
        """
        self.upstream.sent(job, upstream, now, inflight_tokens, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in the first token of what was sent to `upstream` at `dispatched`, as soon as it is there."""
        job = self.upstream.first_token(upstream, dispatched, now)
        if job is not None and (target := self.promises.of(job.klass).ttft_s) is not None:
            self.admission.room.add((now - job.arrival) / target)

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that was sent to `upstream` and will be answered from elsewhere."""
        self.upstream.gone(upstream, dispatched)

    def observe(self, obs: Observation, missed: tuple[str, ...]) -> None:
        """Learn from one finished request, which missed these targets (`controller.measure.latency.violations`)."""
        klass, result, dispatched = obs.klass, obs.result, obs.dispatched
        admitted = result is _OK or result is _TIMEOUT
        if admitted:
            self.express.observe(klass, dispatched, bool(missed))
            if self.promises.by_class:
                self._active[klass] = obs.done
        slo = self.promises.of(klass)
        by_load = not missed or not self._excused(obs, slo, missed)
        self._judge_admission(obs, slo, missed if by_load else ())
        if dispatched is None:
            return
        if admitted:
            self.upstream.observe(obs, missed, slo, by_load=by_load)
        else:
            self.upstream.gone(obs.upstream, dispatched)

    # For the one that decides.

    def enter(self, setpoints: Setpoints) -> None:
        """Act under other setpoints from now on."""
        self.setpoints = setpoints

    def set_slos(self, promises: Promises, now: float) -> None:
        """Act under other SLOs from now on."""
        self.promises = promises
        self._budget(now)

    def follow(self, terms: LawTerms) -> None:
        """Act under another law's terms from now on."""
        self._terms = terms
        self._forms, self._sheds = terms.forms_batches, terms.admission
        self.upstream.late_target(terms.late_target)
        self._budget(None)

    def tick(self, now: float) -> bool:
        """Do what is due once a second; returns whether the cap held work back since the last time (merge)."""
        self._measure_arrivals(now)
        self.upstream.tick(now)
        if self.promises.by_class:
            self._budget(now)
        bound, self._cap_bound = self._cap_bound, False
        return bound

    def shift_express(self, now: float) -> Shift | None:
        """Move the express lane's share if what was seen justifies it."""
        return self.express.tick(now, 1.0 - self.promises.pool.quantile)

    def predicted_ratio(self, size: int) -> float | None:
        """Return the predicted upstream time at another size over its budget; None while unidentified."""
        return self.upstream.predicted_ratio(size, self.limits)

    @property
    def arrival_rate(self) -> float:
        """Requests a second, refused ones included, averaged over a few seconds."""
        return self._arrival_rate or 0.0

    @property
    def arrivals(self) -> int:
        """Requests that arrived so far, refused ones included."""
        return self._arrivals_before + self._arrivals

    def arrived(self, count: int) -> None:
        """Take note of requests that others admitted."""
        self._arrivals += count

    # Inner workings.

    def _ample(self, slo: SLO, now: float) -> bool:
        """Whether those admitted lately had time to spare, and nobody has waited for long."""
        admission = self.admission
        if not admission.room.ample:
            return False
        return slo.ttft_s is None or admission.ample(slo, self.upstream.awaited_s(now))

    def _excused(self, obs: Observation, slo: SLO, missed: tuple[str, ...]) -> bool:
        """Whether only its own length made a request late."""
        if not self._gated or missed != _WHOLE_ONLY or slo.e2e_s is None or obs.dispatched is None:
            return False
        typical = sorted(self._tokens)[len(self._tokens) // 2] if len(self._tokens) >= _TYPICAL else 0
        return decided_by_length(obs.done - obs.dispatched, obs.output_tokens, float(typical), slo.e2e_s)

    def _judge_admission(self, obs: Observation, slo: SLO, missed: tuple[str, ...]) -> None:
        """Tell admission what became of somebody it let in; a pace that was missed is not for it to foresee."""
        admission, result = self.admission, obs.result
        if self._gated and obs.output_tokens:
            self._tokens.append(obs.output_tokens)
        if result is _REFUSED:
            return
        if result is _CANCELLED or result is _FAILED:
            admission.record.ended(obs.arrival, obs.done, None)
            return
        late = result is _SHED or (len(missed) > 0 and missed != _PACE_ONLY)
        admission.record.ended(obs.arrival, obs.done, not late)
        if result is _SHED:
            admission.room.add(1.0)
            return
        used = used_share(obs, slo, first_told=self._gated)
        if used >= 0.0:
            admission.room.add(used)

    def _budget(self, now: float | None) -> None:
        """Work out what the promises leave to the upstream, of classes that had traffic in the last minute."""
        share = self._terms.e2e_share
        active = [klass for klass, at in self._active.items() if now is not None and now - at < _ACTIVE_S]
        self.limits = self.promises.limits(self.mode, share, active)
        self.class_limits = self.promises.class_budgets(self.mode, share)

    def _measure_arrivals(self, now: float) -> None:
        elapsed = now - self._last_tick
        if elapsed > 0.0:
            rate = self._arrivals / elapsed
            self._arrival_rate = rate if self._arrival_rate is None else 0.8 * self._arrival_rate + 0.2 * rate
            self._arrivals_before += self._arrivals
            self._arrivals = 0
            self._last_tick = now
