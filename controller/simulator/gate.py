"""A day in front of an engine that batches by itself, in virtual time."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Sequence

from controller.load import MAX_RUNNING, Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.simulator.arrivals import Request
from controller.simulator.engine import Engine, EnginePlant
from controller.simulator.engine import Sequence as Running
from controller.simulator.record import Fate, Record
from policies.base import Job, Policy

__all__ = ["simulate_gate"]


_ENGINE = "engine"


class _Waiting(Job):
    """A queued request, its place in the order, and what it really is."""

    __slots__ = ("key", "request")

    def __init__(self, index: int, request: Request) -> None:
        super().__init__(
            str(index),
            request.arrival,
            tenant=request.tenant,
            prompt_tokens=request.prompt_tokens,
            predicted_tokens=request.predicted_tokens,
            klass=request.klass,
            express=request.express,
        )
        self.key = (request.arrival, index)
        self.request = request


def simulate_gate(
    requests: Sequence[Request],
    controller: PoolController,
    plant: EnginePlant,
    *,
    horizon_s: float,
    seed: int,
    policy: Policy | None = None,
    tick_s: float = 1.0,
    drain_s: float = 60.0,
    max_wait_s: float | None = None,
    on_tick: Callable[[float, PoolController], None] | None = None,
) -> Record:
    """Play `requests` through `controller` in front of one engine; in order of arrival, or of `policy`.

    Whatever has not ended `drain_s` after the horizon counts as timed out. Who waits longer than `max_wait_s` in the
    queue is dropped from it, as the proxy's own queue does.
    """
    return _Gate(requests, controller, plant, horizon_s, seed, policy, tick_s, max_wait_s, on_tick).run(drain_s)


class _Gate:
    def __init__(
        self,
        requests: Sequence[Request],
        controller: PoolController,
        plant: EnginePlant,
        horizon_s: float,
        seed: int,
        policy: Policy | None,
        tick_s: float,
        max_wait_s: float | None,
        on_tick: Callable[[float, PoolController], None] | None,
    ) -> None:
        self.requests = requests
        self.controller = controller
        self.plant = plant
        self.policy = policy
        self.tick_s = tick_s
        self.max_wait_s = max_wait_s
        self.on_tick = on_tick
        self.engine = Engine(plant, random.Random(seed))
        self.record = Record(controller.slo, horizon_s, class_slos=controller.class_slos)
        self.queue: list[_Waiting] = []
        self.flight: dict[Running, tuple[_Waiting, int, int]] = {}
        self.held = False
        self.held_tokens = 0.0
        self.frozen_load: Load | None = None

    def run(self, drain_s: float) -> Record:
        """Play until everything ended or `drain_s` after the horizon."""
        position, next_tick = 0, self.tick_s
        inf = float("inf")
        end = self.record.horizon_s + drain_s
        while True:
            arrival = self.requests[position].arrival if position < len(self.requests) else inf
            internal = self.engine.next_event()
            if arrival == inf and internal == inf and not self.queue:
                break
            now = min(arrival, internal, next_tick)
            if now > end:
                break
            self.engine.advance(now)
            self._collect(now)
            if now == next_tick:
                self._tick(now)
                next_tick += self.tick_s
            if now == arrival:
                self._arrive(position, now)
                position += 1
            self._pump(now)
        self._close(end)
        return self.record

    def _load(self) -> Load:
        running = [sequence.arrived for sequence in self.flight]
        return Load(
            queued=len(self.queue),
            inflight=len(running),
            inflight_tokens=self.held_tokens,
            inflight_calls=len(running),
            running=running[:MAX_RUNNING],
            slots=self.plant.max_num_seqs,
            inflight_express=sum(job.express for job, _, _ in self.flight.values()),
            app_limited=not self.held,
        )

    def _tick(self, now: float) -> None:
        load = self._load()
        if self.plant.faults.frozen(now):
            load = self.frozen_load or load
        self.frozen_load = load
        self.controller.tick(now, load)
        self.held = False
        points = self.controller.setpoints
        self.record.setpoints.append((now, points.max_batch_size, points.window_ms))
        if self.on_tick is not None:
            self.on_tick(now, self.controller)

    def _arrive(self, index: int, now: float) -> None:
        request = self.requests[index]
        job = _Waiting(index, request)
        if not self.controller.admit(job, now, self._load()).admitted:
            self._end(job, now, Result.REFUSED)
            return
        if self.policy is not None:
            job.key = (self.policy.key(job), index)
        insort(self.queue, job, key=lambda waiting: waiting.key)

    def _expire(self, now: float) -> None:
        if self.max_wait_s is None:
            return
        expired = [job for job in self.queue if now - job.arrival > self.max_wait_s]
        for job in expired:
            self.queue.remove(job)
            self._end(job, now, Result.SHED)
            if self.policy is not None:
                self.policy.removed(job)

    def _pump(self, now: float) -> None:
        self._expire(now)
        while self.queue:
            free = self.controller.setpoints.max_batch_size - len(self.flight)
            if free <= 0:
                self.held = True
                return
            candidates = self.queue[: free + 16]
            choice = self.controller.choose(candidates, now, self._load())
            going = choice.sent(len(candidates))
            for index in choice.shed:
                self._end(candidates[index], now, Result.SHED)
                if self.policy is not None:
                    self.policy.removed(candidates[index])
            for index in going:
                self._send(candidates[index], now)
            gone = {*choice.shed, *going}
            self.queue[: len(candidates)] = [job for index, job in enumerate(candidates) if index not in gone]
            if not gone:
                return

    def _send(self, job: _Waiting, now: float) -> None:
        if self.policy is not None:
            self.policy.dispatched(job)
        if self.plant.faults.fails(now):
            self._end(job, now, Result.FAILED, dispatched=now)
            return
        sequence = self.engine.submit(job.request, now)
        self.controller.sent(job, _ENGINE, now, self.held_tokens)
        self.held_tokens += job.request.prompt_tokens + self._expected(job.request)
        self.flight[sequence] = (job, len(self.flight) + 1, self.controller.setpoints.generation)

    def _expected(self, request: Request) -> float:
        return request.predicted_tokens if request.predicted_tokens is not None else 100.0

    def _collect(self, now: float) -> None:
        for sequence in self.engine.started:
            if sequence.first_token is not None:
                self.controller.first_token(_ENGINE, sequence.arrived, sequence.first_token)
        self.engine.started.clear()
        for sequence in self.engine.finished:
            job, together, generation = self.flight.pop(sequence)
            self.held_tokens = max(0.0, self.held_tokens - job.request.prompt_tokens - self._expected(job.request))
            if self.policy is not None:
                self.policy.completed(job, job.request.output_tokens)
            self._end(
                job,
                now,
                Result.OK,
                dispatched=sequence.arrived,
                first=sequence.first_token,
                together=together,
                generation=generation,
            )
        self.engine.finished.clear()

    def _end(
        self,
        job: _Waiting,
        now: float,
        result: Result,
        *,
        dispatched: float | None = None,
        first: float | None = None,
        together: int = 1,
        generation: int | None = None,
    ) -> None:
        request = job.request
        obs = Observation(
            self.controller.pool,
            request.arrival,
            now,
            result,
            self.controller.setpoints.generation if generation is None else generation,
            dispatched=dispatched,
            first_byte=first,
            last_byte=now if first is not None else None,
            batch=together,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens if result is Result.OK else 0,
            streamed=first is not None,
            klass=request.klass,
            tenant=request.tenant,
            upstream=_ENGINE,
        )
        self.controller.observe(obs)
        self.record.fates.append(
            Fate(
                request.arrival,
                now,
                result,
                dispatched,
                obs.ttft_s,
                obs.tpot_s,
                request.output_tokens,
                request.tenant,
                request.prompt_tokens,
                request.klass,
            )
        )

    def _close(self, now: float) -> None:
        """Count whatever has not ended as timed out."""
        for job, _, _ in self.flight.values():
            self.record.fates.append(Fate(job.arrival, now, Result.TIMEOUT, job.arrival, klass=job.klass))
        for job in self.queue:
            self.record.fates.append(Fate(job.arrival, now, Result.TIMEOUT, klass=job.klass))
        self.record.upstream_busy_s = self.engine.busy_s
        self.record.preemptions = self.engine.preemptions
        self.record.calls = len(self.record.fates)
