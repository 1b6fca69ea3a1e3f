"""One pool's controller: observations in, setpoints and verdicts out.

Everything here is arithmetic on arguments: no clock is read and nothing waits, so the live proxy and the
simulator drive the very same object.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mypy_extensions import mypyc_attr

from controller.decision import Decision
from controller.dispatch.admission import Admission
from controller.dispatch.express import ExpressLane
from controller.dispatch.gate_upstream import GateUpstream
from controller.dispatch.merge_upstream import MergeUpstream
from controller.dispatch.room import used_share
from controller.dispatch.upstream import Upstream
from controller.laws import Advice, View
from controller.load import Load
from controller.measure.error_budget import ErrorBudget
from controller.measure.evidence import Budget, Evidence, Mode, decided_by_length
from controller.measure.latency import LatencyWindow, attainment
from controller.measure.promises import Promises
from controller.measure.samples import Sample
from controller.measure.sketch import Sketch
from controller.observation import Observation, Result
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.cut_guard import CutGuard
from controller.tune.knobs import slo_dict
from controller.tune.steered import RETARGET_S, SteeredPool
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Choice", "Load", "PoolController", "Verdict"]

_KEPT: Final = 4096
_TYPICAL: Final = 16
"""Answers before any length is called typical."""
_PACE_ONLY: Final[tuple[str, ...]] = ("tpot",)
_WHOLE_ONLY: Final[tuple[str, ...]] = ("e2e",)
_ACTIVE_S: Final = 60.0
_NO_LIMITS: Final = "No latency is promised that a batch size could break, so the law holds."
_UNLIMITED: Final = Verdict(True, "no_admission", None, 0.0)
_OK: Final = Result.OK
_TIMEOUT: Final = Result.TIMEOUT
_FAILED: Final = Result.FAILED
_REFUSED: Final = Result.REFUSED
_SHED: Final = Result.SHED
_CANCELLED: Final = Result.CANCELLED


@mypyc_attr(allow_interpreted_subclasses=True)
class PoolController(SteeredPool):
    """Steers one pool: admits, forms batches, and retunes `max_batch_size` and `window_ms` once a second.

    `law_options` go to the law, except for two that every law shares: `admission` (default True; False switches
    off refusing and shedding by prediction) and `late_target` (default 0.01; the late share among the admitted that
    predictions are corrected towards). `class_slos` are the promises of classes that have their own; `express_share`
    is where the express lane's share starts (`controller.dispatch.express`). `wall` stamps decisions for people and
    decides nothing.
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
        super().__init__(
            pool,
            promises=Promises(slo, class_slos),
            setpoints=setpoints,
            bounds=bounds,
            law=law,
            law_options=law_options,
            mode=mode,
            now=now,
            wall=wall,
        )
        self.express = ExpressLane(express_share)
        self._budgets: dict[str, ErrorBudget] = {}
        self._active: dict[str, float] = {}
        self._started = now
        late_target = self._late_target
        self._upstream: Upstream = MergeUpstream(late_target) if mode == "merge" else GateUpstream(late_target)
        self._gated = mode == "gate"
        self._admission = Admission()
        self._cut_guard = CutGuard()
        self._tokens: deque[int] = deque(maxlen=100)
        """How long the latest answers were; few ask, and only then is it sorted."""
        self._window = LatencyWindow()
        self._kept: deque[Observation] = deque(maxlen=_KEPT)
        self._gaps = Sketch()
        self._limits: tuple[Budget, ...] = ()
        self._class_limits: dict[str, tuple[Budget, ...]] = {}
        self._budget()
        self._cap_bound = False
        self._arrivals = 0
        self._arrival_rate: float | None = None
        self._last_tick = now

    @property
    def arrival_rate(self) -> float:
        """Requests a second, refused ones included, averaged over a few seconds."""
        return self._arrival_rate or 0.0

    # The request path.

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""
        klass = obs.klass
        slo = self._promises.of(klass)
        missed = self._window.add(obs, slo)
        result = obs.result
        admitted = result is _OK or result is _TIMEOUT
        if admitted:
            self._account(klass, obs, bool(missed))
        self._kept.append(obs)
        by_load = not missed or not self._excused(obs, slo, missed)
        self._judge_admission(obs, slo, missed if by_load else ())
        sample = Sample.of(obs)
        if sample is None:
            if obs.dispatched is not None:
                self._upstream.gone(obs.upstream, obs.dispatched)
            return
        self._law.observe(sample)
        if self._shadow is not None:
            self._shadow.observe(sample)
        self._samples.add(sample, obs.generation)
        if self._experiment is not None and result is not _CANCELLED:
            self._experiment.observe(sample.dispatched, bool(missed))
        if admitted:
            self._upstream.observe(obs, missed, by_load=by_load)
        elif obs.dispatched is not None:
            self._upstream.gone(obs.upstream, obs.dispatched)

    def sent(
        self, job: Job, upstream: str, now: float, inflight_tokens: float = 0.0, *, streamed: bool = True
    ) -> None:
        """Take note of a request that was sent to `upstream` by itself, beside others with `inflight_tokens`.

        Those are 0 when nobody counts them. `streamed`: whether its first token will be told.
        """
        self._upstream.sent(job, upstream, now, inflight_tokens, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in the first token of what was sent to `upstream` at `dispatched`, as soon as it is there."""
        job = self._upstream.first_token(upstream, dispatched, now)
        if job is not None and (target := self._promises.of(job.klass).ttft_s) is not None:
            self._admission.room.add((now - job.arrival) / target)

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that was sent to `upstream` and will be answered from elsewhere."""
        self._upstream.gone(upstream, dispatched)

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
        upstream = self._upstream
        awaited_s = 0.0 if forecast is None or load.idle else upstream.awaited_s(now)
        verdict = self._admission.judge(job, now, load, slo, forecast, upstream.last_service_s, awaited_s)
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
        shed = self._admission_on
        if shed and self._gated and self._ample(promises.pool, now):
            # While there is time to spare, a model that calls somebody hopeless is wrong.
            shed = False
        choice = self._upstream.choose(candidates, cap, now, load, promises, form=law.forms_batches, shed=shed)
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
        advice = self._advice(view)
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

    def corrupt_estimates(self, factor: float) -> None:
        """Multiply everything the models believe, for drills: shows that a wrong belief heals."""
        self._upstream.scale(factor)

    def quantiles(self, now: float) -> dict[str, Any]:
        """Return every latency's live quantiles with n and interval, JSON-ready; a part of `snapshot`."""
        return self._window.quantiles(now)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the whole state, JSON-ready: live quantiles with n and interval, counts, attainment, law, model."""
        counts = self._window.counts(now)
        whole = ErrorBudget.total(self._budgets.values(), self._started)
        return {
            "pool": self.pool,
            "mode": self.mode,
            "law": {
                "name": self._law.name,
                "options": self.law_options,
                "state": self._law.state(),
                "admission": self._admission_on,
                "guard": self._cut_guard.state(),
            },
            "shadow": None if self._shadow is None else self._shadow.name,
            "experiment": None if self._experiment is None else self._experiment.as_dict(),
            "frozen": self.frozen,
            "slo": slo_dict(self.slo),
            "classes": {
                klass: {"slo": slo_dict(slo := self.slo_of(klass)), "error_budget": spent.as_dict(now, slo.quantile)}
                for klass, spent in sorted(self._budgets.items())
            },
            "error_budget": whole.as_dict(now, self.slo.quantile),
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
            "admission": {
                "room": self._admission.room.as_dict(),
                "record": self._admission.record.as_dict(),
            },
        }

    # Inner workings.

    def _advice(self, view: View) -> Advice | None:
        """Ask the law, and let what it says be judged by what its cuts did so far."""
        if self.frozen:
            return None
        advice = self._law.tick(view)
        if not self._guards_on or "max_batch_size" in self._pins:
            return advice
        return self._cut_guard.review(view, advice, self._law.name)

    def _ample(self, slo: SLO, now: float) -> bool:
        """Whether those admitted lately had time to spare, and nobody has waited for long."""
        admission = self._admission
        if not admission.room.ample:
            return False
        return slo.ttft_s is None or admission.ample(slo, self._upstream.awaited_s(now))

    def _excused(self, obs: Observation, slo: SLO, missed: tuple[str, ...]) -> bool:
        """Whether only its own length made a request late."""
        if not self._gated or missed != _WHOLE_ONLY or slo.e2e_s is None or obs.dispatched is None:
            return False
        typical = sorted(self._tokens)[len(self._tokens) // 2] if len(self._tokens) >= _TYPICAL else 0
        return decided_by_length(obs.done - obs.dispatched, obs.output_tokens, float(typical), slo.e2e_s)

    def _judge_admission(self, obs: Observation, slo: SLO, missed: tuple[str, ...]) -> None:
        """Tell admission what became of somebody it let in; a pace that was missed is not for it to foresee."""
        admission, result = self._admission, obs.result
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
            in_vain=self._cut_guard.holding,
            class_limits=self._class_limits,
        )

    def _account(self, klass: str, obs: Observation, late: bool) -> None:
        """Count an admitted request against its class's error budget and the lane it took."""
        spent = self._budgets.get(klass)
        if spent is None:
            spent = self._budgets[klass] = ErrorBudget(self._started)
        spent.add(obs.done, late)
        self.express.observe(klass, obs.dispatched, late)
        if self._promises.by_class:
            self._active[klass] = obs.done

    def _budget(self, now: float | None = None) -> None:
        """Work out what the promises leave to the upstream, of classes that had traffic in the last minute."""
        share = self._law.e2e_share
        active = [klass for klass, at in self._active.items() if now is not None and now - at < _ACTIVE_S]
        self._limits = self._promises.limits(self.mode, share, active)
        self._class_limits = self._promises.class_budgets(self.mode, share)

    def _promise_changed(self, now: float) -> None:
        self._budget(now)
        self._window = LatencyWindow()
        for obs in self._kept:
            if now - obs.done <= self._window.window_s:
                self._window.add(obs, self._promises.of(obs.klass))

    def _law_changed(self) -> None:
        self._upstream.late_target(self._late_target)
        self._budget()

    def _evidence(self, now: float) -> Evidence:
        return self._view(now, Load()).evidence()

    def _measure_arrivals(self, now: float) -> None:
        elapsed = now - self._last_tick
        if elapsed > 0.0:
            rate = self._arrivals / elapsed
            self._arrival_rate = rate if self._arrival_rate is None else 0.8 * self._arrival_rate + 0.2 * rate
            self._arrivals = 0
            self._last_tick = now

    def _consult_shadow(self, view: View) -> None:
        advice = None if self._shadow is None else self._shadow.tick(view)
        if advice is not None:
            new = {"max_batch_size": advice.max_batch_size, "window_ms": advice.window_ms}
            self._note(view.now, "shadow", f"shadow.{advice.rule}", self._knobs(), new, advice.text, advice.seen)
