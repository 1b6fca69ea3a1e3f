"""A day in front of upstreams that take whole batches, in virtual time."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.simulator.arrivals import Request
from controller.simulator.plants import Faults
from controller.simulator.record import Fate, Record
from policies.base import Job

__all__ = ["MergePlant", "simulate_merge"]


class MergePlant(Protocol):
    """What a batch takes."""

    faults: Faults

    def service_s(self, batch: Sequence[Request], now: float, rng: random.Random) -> float:
        """Return how long the upstream works on `batch`, dispatched at `now`."""
        ...


class _Waiting(Job):
    """A queued request: the job that the controller sees, and what it really is."""

    __slots__ = ("request",)

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
        self.request = request


def simulate_merge(
    requests: Sequence[Request],
    controller: PoolController,
    plant: MergePlant,
    *,
    horizon_s: float,
    seed: int,
    slots: int = 1,
    tick_s: float = 1.0,
    timeout_s: float = 600.0,
    on_tick: Callable[[float, PoolController], None] | None = None,
) -> Record:
    """Play `requests` through `controller` against `slots` upstreams of one kind.

    The controller is told everything that the live proxy tells it, and nothing else. `seed` draws the luck of the
    batches, so that two laws can be compared on common random numbers.
    """
    return _Merge(
        requests, controller, plant, horizon_s, random.Random(seed), slots, tick_s, timeout_s, on_tick
    ).run()


class _Merge:
    def __init__(
        self,
        requests: Sequence[Request],
        controller: PoolController,
        plant: MergePlant,
        horizon_s: float,
        rng: random.Random,
        slots: int,
        tick_s: float,
        timeout_s: float,
        on_tick: Callable[[float, PoolController], None] | None,
    ) -> None:
        self.requests = requests
        self.controller = controller
        self.plant = plant
        self.rng = rng
        self.slots = slots
        self.tick_s = tick_s
        self.timeout_s = timeout_s
        self.on_tick = on_tick
        self.record = Record(controller.slo, horizon_s, class_slos=controller.class_slos)
        self.queue: list[_Waiting] = []
        self.free = list(range(slots))
        self.running: list[tuple[float, int]] = []
        self.calls: list[tuple[float, int, int, float, int, list[_Waiting], Result]] = []
        self.held = False
        self.seen_load: Load | None = None

    def run(self) -> Record:
        """Play until the last request ended, at most a minute of virtual time after the horizon."""
        arrivals, position = self.requests, 0
        next_tick, now = self.tick_s, 0.0
        end = self.record.horizon_s + 60.0
        inf = float("inf")
        while True:
            arrival = arrivals[position].arrival if position < len(arrivals) else inf
            call = self.calls[0][0] if self.calls else inf
            due = self._due(now)
            event = min(arrival, call, due)
            if event == inf or min(event, next_tick) > end:
                break
            if next_tick <= event:
                now = next_tick
                self._tick(now)
                next_tick += self.tick_s
                self._pump(now)
                continue
            now = event
            if call <= now:
                self._finish(now)
            elif arrival <= now:
                self._arrive(position, arrivals[position], now)
                position += 1
            self._pump(now)
        self._close(end)
        return self.record

    def _load(self) -> Load:
        return Load(
            queued=len(self.queue),
            inflight=sum(size for _, size in self.running),
            inflight_calls=len(self.running),
            running=tuple(start for start, _ in self.running),
            running_batches=tuple(size for _, size in self.running),
            slots=self.slots,
            app_limited=not self.held,
        )

    def _due(self, now: float) -> float:
        """Return when the window of the first waiting request closes, if that is what the queue waits for."""
        if not self.queue or not self.free:
            return float("inf")
        window = self.controller.window_s(now, self._load())
        due = self.queue[0].arrival + window
        return due if due > now else float("inf")

    def _tick(self, now: float) -> None:
        load = self._load()
        if self.plant.faults.frozen(now):
            load = self.seen_load or load
        self.seen_load = load
        self.controller.tick(now, load)
        self.held = False
        points = self.controller.setpoints
        self.record.setpoints.append((now, points.max_batch_size, points.window_ms))
        if self.on_tick is not None:
            self.on_tick(now, self.controller)

    def _arrive(self, index: int, request: Request, now: float) -> None:
        job = _Waiting(index, request)
        waiting = self.queue if self.controller.weighs_waiting else ()
        if self.controller.admit(job, now, self._load(), waiting).admitted:
            insort(self.queue, job, key=lambda waiting: waiting.arrival)
        else:
            self._end(job, now, Result.REFUSED)

    def _pump(self, now: float) -> None:
        while self.free and self.queue:
            load = self._load()
            if self.queue[0].arrival + self.controller.window_s(now, load) > now + 1e-9:
                return
            cap = self.controller.setpoints.max_batch_size
            candidates = self.queue[: 2 * cap + 64]
            choice = self.controller.choose(candidates, now, load)
            going = choice.sent(len(candidates))
            batch = [candidates[position] for position in going]
            gone = {*choice.shed, *going}
            for position in choice.shed:
                self._end(candidates[position], now, Result.SHED)
            self.queue[: len(candidates)] = [job for at, job in enumerate(candidates) if at not in gone]
            if not batch:
                if choice.shed:
                    continue
                return
            self.held = self.held or (bool(self.queue) and choice.take >= cap)
            self._send(batch, now)

    def _send(self, batch: list[_Waiting], now: float) -> None:
        upstream = self.free.pop()
        result = Result.OK
        seconds = self.plant.service_s([job.request for job in batch], now, self.rng)
        if self.plant.faults.fails(now):
            seconds, result = 0.005, Result.FAILED
        elif seconds > self.timeout_s:
            seconds, result = self.timeout_s, Result.TIMEOUT
        self.running.append((now, len(batch)))
        self.record.calls += 1
        self.record.upstream_busy_s += seconds
        generation = self.controller.setpoints.generation
        heappush(self.calls, (now + seconds, self.record.calls, upstream, now, generation, batch, result))

    def _finish(self, now: float) -> None:
        _, _, upstream, start, generation, batch, result = heappop(self.calls)
        self.running.remove((start, len(batch)))
        self.free.append(upstream)
        for job in batch:
            self._end(job, now, result, start, len(batch), generation, f"u{upstream}")

    def _end(
        self,
        job: _Waiting,
        now: float,
        result: Result,
        dispatched: float | None = None,
        batch: int = 1,
        generation: int | None = None,
        upstream: str = "",
    ) -> None:
        request = job.request
        self.record.fates.append(
            Fate(request.arrival, now, result, dispatched, output_tokens=request.output_tokens, klass=request.klass)
        )
        points = self.controller.setpoints
        self.controller.observe(
            Observation(
                self.controller.pool,
                request.arrival,
                now,
                result,
                points.generation if generation is None else generation,
                dispatched=dispatched,
                batch=batch,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens if result is Result.OK else 0,
                tenant=request.tenant,
                klass=request.klass,
                upstream=upstream,
            )
        )

    def _close(self, now: float) -> None:
        """Count whatever is still waiting or running as timed out."""
        for call in self.calls:
            for job in call[5]:
                self.record.fates.append(Fate(job.arrival, now, Result.TIMEOUT, call[3], klass=job.klass))
        for job in self.queue:
            self.record.fates.append(Fate(job.arrival, now, Result.TIMEOUT, klass=job.klass))
