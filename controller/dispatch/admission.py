"""Will a newcomer make its deadline? Refusing at once beats answering too late.

Measured, this is worth more than any rule for the batch size: under overload the best fixed batch size without it
keeps half of what it keeps with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from controller.dispatch.room import Room, TrackRecord
from controller.load import Load
from controller.models.batch_model import BatchModel
from controller.models.concurrency_model import ConcurrencyModel
from controller.slo import SLO
from controller.verdict import Verdict
from policies.base import Job

__all__ = ["Admission", "Forecast", "backlog_s", "forecast_gate", "forecast_merge"]


_IDLE: Final = Verdict(True, "idle", None, 0.0)
_NO_SLO: Final = Verdict(True, "no_slo", None, 0.0)
_NO_MODEL: Final = Verdict(True, "no_model", None, 0.0)
_NEVER_LATE: Final = float("-inf")


@dataclass(slots=True, init=False)
class Forecast:
    """What lies before a newcomer, in seconds from now. Nobody changes one."""

    wait_s: float
    """Until it is dispatched, or for a merged call until the upstream takes it up."""
    first_s: float
    """Until its first token."""
    done_s: float
    """Until its last byte."""

    def __init__(self, wait_s: float, first_s: float, done_s: float) -> None:
        self.wait_s = wait_s
        self.first_s = first_s
        self.done_s = done_s


def backlog_s(model: BatchModel, now: float, load: Load, servers: int = 1) -> float:
    """Return how long the calls in flight keep the `servers` upstreams busy, seconds.

    The oldest call of each has run since its dispatch; the ones behind it have not started.
    """
    if load.inflight_calls < servers or not load.inflight_calls:
        return 0.0
    total = 0.0
    for index, dispatched in enumerate(load.running):
        batch = load.running_batches[index] if index < len(load.running_batches) else 1
        total += model.remaining_s(batch, max(0.0, now - dispatched)) if index < servers else model.quantile_s(batch)
    return total / servers


def forecast_merge(model: BatchModel, cap: int, now: float, load: Load, servers: int = 1) -> Forecast:
    """Predict for an upstream that takes whole batches: what runs, the full batches ahead, and its own.

    Its own batch is taken at the size it would have now, not at the cap: an estimate at the cap would refuse
    everybody, so that no sample ever corrected it.
    """
    full, rest = divmod(load.queued, cap)
    wait = backlog_s(model, now, load, servers)
    if full:
        wait += full * model.quantile_s(cap) / servers
    done = wait + model.quantile_s(min(cap, rest + 1))
    return Forecast(wait, done, done)


def forecast_gate(model: ConcurrencyModel, cap: int, job: Job, now: float, load: Load) -> Forecast:
    """Predict for an upstream that batches by itself, at the concurrency the newcomer would meet."""
    together = load.inflight + load.queued + 1
    wait = 0.0
    if together > cap:
        wait = (together - cap) / model.drain_rate(cap)
        together = cap
    first = model.first.quantile_s(job.prompt_tokens, model.theta)
    ahead = model.first.ahead_s(now) - wait
    if ahead > 0.0:
        first += ahead
    output = job.predicted_tokens_p90
    if output is None:
        output = job.predicted_tokens
    return Forecast(wait, wait + first, wait + model.service_s(job.prompt_tokens, output, together))


class Admission:
    """Refuse what is predicted to be late; never when idle, never everything, and never from an empty queue in vain.

    When a prediction is wrong enough to refuse everybody, no sample would ever correct it. So a probe is let through
    at least once in max(1 s, the last service time), and while nothing waits the prediction has to prove itself: it
    counts for nothing while those admitted had time to spare (`Room`), or while those it called late
    were in time (`TrackRecord`).
    """

    def __init__(self) -> None:
        self._last_admitted: float | None = None
        self.room = Room()
        self.record = TrackRecord()

    def admitted(self, now: float) -> None:
        """Take note of an admission decided elsewhere."""
        self._last_admitted = now

    def ample(self, slo: SLO, awaited_s: float) -> bool:
        """Whether there is time to spare: `awaited_s` is for how long the oldest first token has been awaited."""
        return self.room.ample and (slo.ttft_s is None or awaited_s <= 0.5 * slo.ttft_s)

    def judge(
        self,
        job: Job,
        now: float,
        load: Load,
        slo: SLO,
        forecast: Forecast | None,
        probe_every_s: float,
        awaited_s: float = 0.0,
    ) -> Verdict:
        """Decide about `job`; `forecast` is None while there is no model."""
        if load.idle:
            verdict = _IDLE
        elif forecast is None:
            verdict = _NO_MODEL
        else:
            excess, predicted = _excess(job, now, slo, forecast)
            if predicted is None:
                verdict = _NO_SLO
            elif excess <= 0.0:
                verdict = Verdict(True, "ok", predicted, 0.0)
            else:
                reason = self._in_spite(now, load, slo, probe_every_s, awaited_s)
                if not reason:
                    return Verdict(False, "slo_infeasible", predicted, max(1.0, excess))
                self.record.admitted(job.arrival, now, trial=reason == "trial")
                verdict = Verdict(True, reason, predicted, 0.0)
        self._last_admitted = now
        return verdict

    def _in_spite(self, now: float, load: Load, slo: SLO, probe_every_s: float, awaited_s: float) -> str:
        """Return why somebody who is predicted to be late is let in; empty when nothing speaks for it."""
        if not load.queued:
            if self.ample(slo, awaited_s):
                return "room"
            if self.record.disproved(now):
                return "disproved"
            if self.record.due(now):
                return "trial"
        last = self._last_admitted
        return "probe" if last is None or now - last >= max(1.0, probe_every_s) else ""


def _excess(job: Job, now: float, slo: SLO, forecast: Forecast) -> tuple[float, float | None]:
    """Return by how much the tightest promise would be missed, and the prediction it is about (None: no promise)."""
    worst = _NEVER_LATE
    predicted: float | None = None
    age = now - job.arrival if now > job.arrival else 0.0
    whole = slo.e2e_s
    if job.deadline is not None:
        left = job.deadline - job.arrival
        whole = left if whole is None or left < whole else whole
    if whole is not None and (excess := age + forecast.done_s - whole) > worst:
        worst, predicted = excess, forecast.done_s
    if slo.ttft_s is not None and (excess := age + forecast.first_s - slo.ttft_s) > worst:
        worst, predicted = excess, forecast.first_s
    if slo.queue_s is not None and (excess := age + forecast.wait_s - slo.queue_s) > worst:
        worst, predicted = excess, forecast.wait_s
    return worst, predicted
