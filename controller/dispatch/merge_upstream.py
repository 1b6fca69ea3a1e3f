"""Upstreams that take whole batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from controller.dispatch.admission import Forecast, backlog_s, forecast_merge
from controller.dispatch.former import first_come, form_batch, form_mixed
from controller.dispatch.upstream import Upstream, job_deadline, job_deadlines
from controller.load import Load
from controller.measure.evidence import Budget
from controller.measure.promises import Promises
from controller.models.batch_model import BatchModel
from controller.observation import Observation
from controller.slo import SLO
from controller.verdict import Choice
from policies.base import Job

__all__ = ["MergeUpstream"]

_FORGET_UPSTREAM_S: Final = 60.0
_ALIKE: Final = 12
_GENTLE: Final = 0.3
_CLOSE: Final = 0.7
"""Part of the promised time from which an answer in time was close enough to say something of the quantile. If those
with time to spare counted, quiet hours would wear down the margin that the next burst needs: half as many again were
late, for 0.1 % more goodput. Where answers differ in length all count: there the length makes them late."""
_LOOKAHEAD: Final = 64
"""Items beyond twice the cap that a choice is made among, as `form_batch` does."""
_PIPELINE_S: Final = 0.05
"""Below this a batch is sent behind the one in flight, because the gap between two calls would cost more."""


@dataclass(slots=True)
class _Call:
    """One upstream call, while its requests report one by one."""

    dispatched: float
    batch: int
    done: float = 0.0
    seen: int = 0
    lengths: list[int] = field(default_factory=list)


class MergeUpstream(Upstream):
    """Upstreams that take whole batches, one at a time each.

    Every request of a call reports the same dispatch time; together they teach the model once. Where several calls
    are in flight at one upstream, the later ones wait there for the earlier ones, so a call's own time starts when
    the one before it ended.
    """

    def __init__(self, late_target: float) -> None:
        self.model = BatchModel(late_target)
        self._calls: dict[str, _Call] = {}
        self._last_done: dict[str, float] = {}
        self._same_size = 0
        self._alike = 0

    @property
    def last_service_s(self) -> float:
        """The last measured service time of a call, in seconds."""
        return self.model.last_seconds

    def sent(self, job: Job, upstream: str, now: float, inflight_tokens: float, *, streamed: bool) -> None:
        """Need nothing: calls are counted."""

    def first_token(self, upstream: str, dispatched: float, now: float) -> Job | None:
        """Need nothing: an answer is there at once."""
        return None

    def gone(self, upstream: str, dispatched: float) -> None:
        """Need nothing."""

    def awaited_s(self, now: float) -> float:
        """Need nothing: who is late in flight is seen by the call."""
        return 0.0

    def observe(self, obs: Observation, missed: tuple[str, ...], slo: SLO, *, by_load: bool = True) -> None:
        """Learn from one request: its lateness at once, the call's time when all of the call are in."""
        dispatched = obs.dispatched
        if dispatched is None:
            return
        if missed or self._close(obs, slo.e2e_s):
            self.model.late(1.0 if missed else 0.0, 1.0 / max(1, obs.batch))
        call = self._calls.get(obs.upstream)
        if call is not None and call.dispatched != dispatched:
            self._learn(obs.upstream, call)
            call = None
        if call is None:
            call = self._calls[obs.upstream] = _Call(dispatched, obs.batch)
        call.done = max(call.done, obs.done)
        call.seen += 1
        if obs.output_tokens:
            call.lengths.append(obs.output_tokens)
        if call.seen >= call.batch:
            self._learn(obs.upstream, call)

    def _close(self, obs: Observation, span: float | None) -> bool:
        """Whether an answer that was in time could easily have been late, with `span` seconds to come in."""
        return span is None or self.model.lengths.varies() or obs.done - obs.arrival > _CLOSE * span

    def _learn(self, upstream: str, call: _Call) -> None:
        del self._calls[upstream]
        started = max(call.dispatched, min(call.done, self._last_done.get(upstream, call.dispatched)))
        self._last_done[upstream] = max(call.done, self._last_done.get(upstream, call.done))
        self._alike = self._alike + 1 if call.batch == self._same_size else 0
        self._same_size = call.batch
        if call.done > started:
            self.model.observe(call.batch, call.done - started, call.done, call.lengths)

    @property
    def weighs_waiting(self) -> bool:
        """Where calls differ in length, who came early in a long one is often too late for the next."""
        return self.model.by_length

    def forecast(
        self, job: Job, cap: int, now: float, load: Load, promises: Promises, waiting: Sequence[Job], *, form: bool
    ) -> Forecast | None:
        """Predict for a newcomer; None before the third call."""
        if self.model.samples < 3:
            return None
        servers = self._servers(now, load)
        if form and load.queued < cap and self.weighs_waiting:
            due = _due(waiting, promises, load.queued)
            if len(due) == load.queued:
                wait = backlog_s(self.model, now, load, servers)
                done = wait + self.model.quantile_s(self._company(due, now + wait))
                return Forecast(wait, done, done)
        return forecast_merge(self.model, cap, now, load, servers)

    def _company(self, due: Sequence[float], start: float) -> int:
        """Return how large a newcomer's batch would be at `start`, of those `due` then who would still make it in it.

        Those who would not are shed by then, and must not keep out whoever comes in their stead.
        """
        size = len(due) + 1
        while size > 1:
            finish = start + self.model.quantile_s(size)
            alive = 1 + sum([deadline >= finish for deadline in due])
            if alive >= size:
                break
            size = alive
        return size

    def choose(
        self, jobs: Sequence[Job], cap: int, now: float, load: Load, promises: Promises, *, form: bool, shed: bool
    ) -> Choice:
        """Form the next batch; the size is in items, the choice in jobs."""
        deadlines, mixed = job_deadlines(jobs, promises)
        former = partial(
            self._form, cap=cap, now=now, load=load, promises=promises, form=form, shed=shed, mixed=mixed
        )
        if all(job.items == 1 for job in jobs):  # as most are
            return former(deadlines)
        owner = _owners(jobs, cap)
        return _in_jobs(former([deadlines[index] for index in owner]), owner, len(jobs))

    def _form(
        self,
        deadlines: Sequence[float],
        cap: int,
        now: float,
        load: Load,
        promises: Promises,
        *,
        form: bool,
        shed: bool,
        mixed: bool,
    ) -> Choice:
        model = self.model
        if not shed or model.samples < 3:
            return first_come(deadlines, cap, now, None)
        servers = self._servers(now, load)
        backlog = backlog_s(model, now, load, servers)
        # An estimate that condemns even a newcomer to an idle upstream can only be corrected by trying.
        span = promises.pool.e2e_s
        probe = not load.inflight_calls and span is not None and model.quantile_s(1) >= 0.98 * span
        if not form:
            return first_come(deadlines, cap, now, model.quantile_s, backlog, probe=probe)
        if load.inflight_calls >= servers and backlog > _PIPELINE_S:
            # A batch formed now could not start before the one in flight ends; formed then, it can be a better one.
            return Choice(0, ())
        spare = load.inflight_calls + 1 < servers
        choice = form_batch(deadlines, cap, now, model.predict, model.quantile_s, backlog, spare=spare, probe=probe)
        choice = self._dithered(choice, deadlines, cap, now + backlog)
        return form_mixed(deadlines, choice, now, model.quantile_s, backlog) if mixed else choice

    def _dithered(self, choice: Choice, deadlines: Sequence[float], cap: int, start: float) -> Choice:
        """Add one to a batch of the size that all of the last dozen had, if it is likely to be in time.

        While the size never varies its cost cannot be learned, and a size that was never tried may look worse than
        it is for ever.
        """
        size = choice.take
        if (
            self._alike < _ALIKE
            or size != self._same_size
            or size >= cap
            or size + len(choice.shed) >= len(deadlines)
        ):
            return choice
        likely = start + self.model.quantile_s(size) * (1.0 + _GENTLE / size)
        dropped = set(choice.shed)
        kept = [index for index in range(len(deadlines)) if index not in dropped][: size + 1]
        if len(kept) <= size or min(deadlines[index] for index in kept) < likely:
            return choice
        return Choice(size + 1, choice.shed)

    def predicted_ratio(self, size: int, limits: tuple[Budget, ...]) -> float | None:
        """Return S_q(size) over the service budget."""
        if not self.model.identified:
            return None
        return max(self.model.quantile_s(size) / budget.limit_s for budget in limits)

    def drain_s(self, cap: int, now: float, load: Load) -> float:
        """Return the time of the calls in flight and of the batches that wait."""
        if not self.model.samples:
            return 0.0
        servers = self._servers(now, load)
        batches = -(-load.queued // cap)
        return backlog_s(self.model, now, load, servers) + batches * self.model.quantile_s(cap) / servers

    def tick(self, now: float) -> None:
        """Nothing is due."""

    def late_target(self, share: float) -> None:
        """Change the late share that predictions are corrected towards."""
        self.model.late_target = share

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        return self.model.as_dict()

    def _servers(self, now: float, load: Load) -> int:
        if load.slots <= 1:
            return 1
        active = sum(now - done < _FORGET_UPSTREAM_S for done in self._last_done.values())
        return max(1, min(load.slots, active))


def _due(waiting: Sequence[Job], promises: Promises, queued: int) -> list[float]:
    """Return when each of the `queued` items that wait is late; fewer where the jobs do not come to as many."""
    due: list[float] = []
    for job in waiting:
        count = max(1, job.items)
        if len(due) + count > queued:
            break
        due += [job_deadline(job, promises.of(job.klass).e2e_s)] * count
    return due


def _owners(jobs: Sequence[Job], cap: int) -> list[int]:
    """Return whose each item is, as far as a choice looks: bounded by the cap, whatever anybody says to bring.

    One that brings more than fit a batch fills it, and goes alone; who comes after the last item looked at waits.
    """
    owner: list[int] = []
    left = 2 * cap + _LOOKAHEAD
    for index, job in enumerate(jobs):
        count = min(max(1, job.items), cap, left)
        if count <= 0:
            break
        owner += [index] * count
        left -= count
    return owner


def _in_jobs(choice: Choice, owner: Sequence[int], count: int) -> Choice:
    """Translate a choice of items into one of whole jobs; `owner` says whose each item is.

    Those whose items were chosen go first, then whoever fits what is left of the chosen size; the first always may.
    A job is shed when any of its items is, for they share a deadline.
    """
    sizes = [0] * count
    for index in owner:
        sizes[index] += 1
    shed = sorted({owner[item] for item in choice.shed})
    dropped = set(shed)
    going: dict[int, None] = {}
    used = 0
    for index in dict.fromkeys([*[owner[item] for item in choice.sent(len(owner))], *owner]):
        if index not in going and index not in dropped and (not going or used + sizes[index] <= choice.take):
            going[index] = None
            used += sizes[index]
    last = max(going, default=-1)
    passed = tuple(index for index in range(last) if index not in going and index not in dropped)
    return Choice(len(going), tuple(shed), passed)
