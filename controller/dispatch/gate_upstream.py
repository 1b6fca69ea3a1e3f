"""Upstreams that batch by themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from controller.dispatch.admission import Forecast, forecast_gate
from controller.dispatch.memory_limit import MemoryLimit
from controller.dispatch.upstream import Upstream, job_deadline
from controller.load import Load
from controller.measure.evidence import Budget
from controller.measure.promises import Promises
from controller.models.concurrency_model import ConcurrencyModel
from controller.observation import Observation
from controller.slo import SLO
from controller.verdict import Choice
from policies.base import Job

__all__ = ["GateUpstream"]

_JAM_FACTOR: Final = 4.0
"""A first token that takes so many times the usual wait was held up by full memory: waiting for a step or a prompt
takes a few times as long at most, waiting for a sequence to end takes what is left of its answer."""
_OUT_FACTOR: Final = 1.8
"""A stream whose tokens came at so many times the usual distance, and others' meanwhile, was thrown out in between:
it stands still for about as long as it runs, which doubles the distance, and a tenth is left for noise."""
_PEERS: Final = 31
"""So many streams around a slow one say how fast others were meanwhile: odd, for one in the middle, and about as many
as run together, so that all of them met the same load."""
_WARM: Final = 32
"""Requests before memory is learned from any: more than the 20 that the averages of what is usual remember."""
_REMEMBERED: Final = 4096
"""Requests begun that are remembered: far more than run at once, so that only what never ended is forgotten."""
_UNBOUND_TICKS: Final = 5
"""Ticks without anybody held back by memory before the cap counts again: one alone is a gap between arrivals."""
_UNSEEN: Final = (0.0, -1.0, 0.0)
_PACE_ONLY: Final[tuple[str, ...]] = ("tpot",)
_NEVER: Final = float("inf")
_NOBODY: Final = Choice(0, ())
_ONE: Final = Choice(1, ())
"""The usual answers, made once."""


_Begun = tuple[float, float, float]
"""Of a request that has its first token: the tokens in flight when it was sent, for how long it waited for what was
no prompt, and for how long prompts may have kept its upstream reading until then, both in seconds."""


class GateUpstream(Upstream):
    """Upstreams that batch by themselves: concurrency is what loads them."""

    def __init__(self, late_target: float) -> None:
        self.model = ConcurrencyModel(late_target)
        self.memory = MemoryLimit()
        self._prompt_tokens = 0.0
        self._together = 1.0
        self._usual_wait_s = 0.0
        self._usual_pace_s = 0.0
        self._usual_between_s = 0.0
        """For how long prompts were read between two tokens, of the latest streams."""
        self._paces: deque[float] = deque(maxlen=_PEERS)
        self._suspects: deque[tuple[int, float, float]] = deque()
        """(number, tokens, pace) of slow streams, until it is known whether those around them were slow too."""
        self._streams = 0
        self._finished = 0
        self._begun: dict[float, list[_Begun]] = {}
        """By when they were sent."""
        self._enforced = False
        self._trusted_since = float("-inf")
        self._memory_bound = False
        self._unbound = 0
        self._fits: float | None = None
        """Sequences in flight when memory held the next one back; None while it does not."""

    @property
    def last_service_s(self) -> float:
        """The last measured service time of a request, in seconds."""
        return self.model.whole.last_seconds or 0.0

    def sent(self, job: Job, upstream: str, now: float, inflight_tokens: float, *, streamed: bool) -> None:
        """Take note of a request sent to `upstream`, beside others with `inflight_tokens` (0: not counted)."""
        total = 0.0
        if inflight_tokens:
            total = inflight_tokens + job.prompt_tokens + (job.predicted_tokens or self.model.mean_output_tokens)
        self.model.first.sent(job, upstream, now, total, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> Job | None:
        """Learn from a first token at once; returns whose it is, None when that is unknown."""
        sent = self.model.first.first_token(upstream, dispatched, now)
        if sent is None:
            return None
        tokens = sent.job.prompt_tokens
        wait = self.model.begun(tokens, now - dispatched, now, sent.ahead_s, sent.doubt_s)
        self._prompt_tokens += 0.05 * (tokens - self._prompt_tokens)
        begun = (sent.total_tokens, wait, self.model.first.most_s(upstream))
        beside = self._begun.get(dispatched)
        if beside is None:
            self._begun[dispatched] = [begun]
        else:
            beside.append(begun)
        return sent.job

    def _begin_late(self, obs: Observation, dispatched: float, first_byte: float) -> None:
        """Learn from a first token that nobody told when it came."""
        if self.first_token(obs.upstream, dispatched, first_byte) is None:
            # Another process sent it.
            wait = self.model.begun(obs.prompt_tokens, first_byte - dispatched, obs.done, 0.0)
            self._prompt_tokens += 0.05 * (obs.prompt_tokens - self._prompt_tokens)
            self._begun[dispatched] = [(0.0, wait, 0.0)]

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that came to nothing here."""
        if self._take(dispatched) is None:
            self.model.first.gone(upstream, dispatched)

    def _take(self, dispatched: float) -> _Begun | None:
        beside = self._begun.get(dispatched) if self._begun else None
        if beside is None:
            return None
        begun = beside.pop(0)
        if not beside:
            del self._begun[dispatched]
        return begun

    def awaited_s(self, now: float) -> float:
        """Return for how long the oldest request has waited for its first token, in seconds."""
        return self.model.first.oldest_s(now)

    def observe(self, obs: Observation, missed: tuple[str, ...], slo: SLO, *, by_load: bool = True) -> None:
        """Learn from one request. Neither its pace nor its length could admission have foreseen or mended."""
        dispatched = obs.dispatched
        if dispatched is None:
            return
        if obs.streamed and obs.first_byte is not None and dispatched not in self._begun:
            self._begin_late(obs, dispatched, obs.first_byte)
        begun = self._take(dispatched)
        if begun is None:
            self.model.first.gone(obs.upstream, dispatched)
        if begun is None:
            begun = _UNSEEN
        trusted = dispatched >= self._trusted_since
        if trusted and by_load:
            self.model.late(len(missed) > 0 and missed != _PACE_ONLY)
        if self.model.observe(obs, obs.batch, by_load=by_load) and begun[1] >= 0.0:
            jammed = self._learn_memory(obs, begun)
            if jammed and not trusted:
                self.model.first.forget_waits(1)
        self._together += 0.05 * (obs.batch - self._together)

    def _learn_memory(self, obs: Observation, begun: _Begun) -> bool:
        tokens, wait, read_s = begun
        first, pace = self.model.first, obs.tpot_s
        self._finished += 1
        # Waiting for a step or a prompt is no sign of full memory; waiting for somebody to finish is.
        prompt_s = first.alone_s(round(self._prompt_tokens))
        usual = max(self._usual_wait_s, 0.5 * prompt_s, 3.0 * self._usual_pace_s)
        # Before anything is known as usual, nothing is unusual; answers that are not streamed tell nothing of it.
        jammed = usual > 0.0 and wait > _JAM_FACTOR * usual
        own = 0.0
        if pace is not None:
            # A stream that more prompts than usual came in between of was not thrown out.
            between_s = max(0.0, first.most_s(obs.upstream) - read_s) / (obs.output_tokens - 1)
            own = pace - max(0.0, between_s - self._usual_between_s)
            self._usual_between_s += 0.05 * (min(between_s, pace) - self._usual_between_s)
        slow = pace is not None and usual > 0.0 and own > _OUT_FACTOR * self._usual_pace_s > 0.0
        warm = self._finished >= _WARM
        if pace is not None:
            self._streams += 1
            self._paces.append(pace)
            if warm:
                self._judge_suspects()
        if slow and not jammed and pace is not None:
            if warm:
                self._suspects.append((self._streams, tokens, own))
        elif warm:
            self.memory.observe(tokens, jammed)
        if not (jammed or slow):
            self._usual_wait_s += (0.05 if self._usual_wait_s else 1.0) * (wait - self._usual_wait_s)
            if pace is not None:
                self._usual_pace_s += (0.05 if self._usual_pace_s else 1.0) * (pace - self._usual_pace_s)
        return jammed or slow

    def _judge_suspects(self) -> None:
        """Tell streams that were thrown out from those at whose time all were slow: at other loads, all are."""
        suspects = self._suspects
        if not suspects or self._streams - suspects[0][0] < _PEERS // 2:
            return
        usual = sorted(self._paces)[len(self._paces) // 2]
        while suspects and self._streams - suspects[0][0] >= _PEERS // 2:
            _, tokens, pace = suspects.popleft()
            thrown_out = pace > _OUT_FACTOR * usual
            self.memory.observe(tokens, thrown_out)
            if not thrown_out:
                self._usual_pace_s += 0.05 * (pace - self._usual_pace_s)

    def tick(self, now: float) -> None:
        """Move the memory limit, and forget dispatches that never came back."""
        before = self.memory.limit_tokens
        self.memory.retune(self._memory_bound)
        limit = self.memory.limit_tokens
        if self._enforced and limit is not None and (before is None or limit < before):
            # Whoever was sent before now may sit in a jam that nobody will be sent into again.
            self._trusted_since = now
            if before is None:
                self.model.first.forget_waits()
                self.model.theta = min(self.model.theta, 0.9)
        self._unbound = 0 if self._memory_bound else self._unbound + 1
        if self._unbound > _UNBOUND_TICKS:
            self._fits = None
        self._memory_bound = False
        self.model.first.tick(now)
        while len(self._begun) > _REMEMBERED:
            del self._begun[next(iter(self._begun))]

    @property
    def weighs_waiting(self) -> bool:
        """No: places are counted."""
        return False

    def forecast(
        self, job: Job, cap: int, now: float, load: Load, promises: Promises, waiting: Sequence[Job], *, form: bool
    ) -> Forecast | None:
        """Predict for a newcomer; None before the eighth request."""
        return forecast_gate(self.model, self._places(cap), job, now, load) if self.model.identified else None

    def _places(self, cap: int) -> int:
        """Return how many sequences run at once when everything is full: the cap, or what memory holds."""
        return cap if self._fits is None else max(1, min(cap, round(self._fits)))

    def choose(
        self, jobs: Sequence[Job], cap: int, now: float, load: Load, promises: Promises, *, form: bool, shed: bool
    ) -> Choice:
        """Fill the free places from the head of the order."""
        choice = self._by_order(jobs, cap, now, load, promises, shed=shed)
        return self._by_memory(jobs, choice, now, load, form=form)

    def _by_memory(self, jobs: Sequence[Job], choice: Choice, now: float, load: Load, *, form: bool) -> Choice:
        """Send only as many as fit in what the engine holds without making anybody wait; one always, when idle."""
        if not choice.take:
            return choice
        self._enforced = form
        limit = self.memory.limit_tokens if form else None
        total = load.inflight_tokens
        taken = 0
        for index in choice.sent(len(jobs)):
            job = jobs[index]
            total += job.prompt_tokens + (job.predicted_tokens or self.model.mean_output_tokens)
            if limit is not None and total > limit and (taken or load.inflight):
                self._memory_bound = True
                fits = float(load.inflight + taken)
                self._fits = fits if self._fits is None else self._fits + 0.1 * (fits - self._fits)
                break
            taken += 1
        return choice if taken == choice.take else Choice(taken, choice.shed, choice.passed)

    def _by_order(
        self, jobs: Sequence[Job], cap: int, now: float, load: Load, promises: Promises, *, shed: bool
    ) -> Choice:
        free = cap - load.inflight
        if free <= 0 or not jobs:
            return _NOBODY
        if not shed or not self.model.identified or not load.inflight:
            # To an idle upstream somebody is always sent: nothing else would correct a wrong estimate.
            return _ONE if len(jobs) == 1 else Choice(min(free, len(jobs)), ())
        dropped: list[int] = []
        taken = 0
        for index, job in enumerate(jobs):
            if taken == free:
                break
            if self._hopeless(job, now, promises.of(job.klass), load.inflight + taken + 1):
                dropped.append(index)
            else:
                taken += 1
        return _ONE if taken == 1 and not dropped else Choice(taken, tuple(dropped))

    def _hopeless(self, job: Job, now: float, slo: SLO, together: int) -> bool:
        if slo.ttft_s is not None:
            first = self.model.first.ahead_s(now) + self.model.first_s(job.prompt_tokens)
            if job.arrival + slo.ttft_s < now + 0.98 * first:
                return True
        deadline = job_deadline(job, slo.e2e_s)
        if deadline == _NEVER:
            return False
        return deadline < now + 0.98 * self.model.service_s(job.prompt_tokens, job.predicted_tokens, together)

    def predicted_ratio(self, size: int, limits: tuple[Budget, ...]) -> float | None:
        """Return the largest of predicted service, first token and pace over their budgets."""
        model = self.model
        if not model.identified:
            return None
        worst: float | None = None
        for budget in limits:
            if budget.metric == "service":
                value = model.service_s(0, None, size)
            elif budget.metric == "first":
                value = model.first_s(round(self._prompt_tokens)) * max(1.0, size / max(1.0, self._together))
            elif model.pace.samples >= 8:
                value = model.pace.predict(size) * model.pace.expert.residuals.quantile(model.theta)
            else:
                continue
            worst = value / budget.limit_s if worst is None else max(worst, value / budget.limit_s)
        return worst

    def drain_s(self, cap: int, now: float, load: Load) -> float:
        """Return the time until a place is free for everybody who waits."""
        places = self._places(cap)
        ahead = load.inflight + load.queued + 1 - places
        return ahead / self.model.drain_rate(places) if ahead > 0 and self.model.samples else 0.0

    def late_target(self, share: float) -> None:
        """Change the late share that predictions are corrected towards."""
        self.model.late_target = share

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        return self.model.as_dict() | {"memory_limit_tokens": self.memory.limit_tokens}
