"""Bar 8: what the controller costs a request, at 256 queued."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks.bars import Bar
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.simulator.run import LawSpec
from controller.slo import SLO
from policies.base import Job

QUEUED = 256


def _trained(mode: str) -> PoolController:
    slo = SLO(e2e_s=60.0) if mode == "merge" else SLO(ttft_s=3600.0, tpot_s=0.05)
    pool = LawSpec("deadline", size=32, highest=32).controller(slo, mode)
    rng = random.Random(0)
    now = 0.0
    for _ in range(400):
        now += 0.5
        size = rng.randrange(1, 33)
        for _ in range(size if mode == "merge" else 1):
            pool.observe(_observation(mode, now, size, rng))
    for second in range(5):
        pool.tick(now + second, Load(queued=QUEUED, inflight=32, inflight_calls=1))
    return pool


def _observation(mode: str, now: float, size: int, rng: random.Random) -> Observation:
    service = (0.7 + 0.13 * size) * rng.uniform(0.95, 1.05)
    streamed = mode == "gate"
    return Observation(
        "simulated",
        now - service - 1.0,
        now,
        Result.OK,
        0,
        dispatched=now - service,
        first_byte=now - service + 0.1 if streamed else None,
        last_byte=now,
        batch=size,
        prompt_tokens=512,
        output_tokens=rng.randrange(60, 140),
        streamed=streamed,
        upstream="u",
    )


def _best_us(call: Callable[[int], object], times: int) -> float:
    """Return the CPU time of one call in microseconds: the best of seven rounds."""
    best = float("inf")
    for _ in range(7):
        start = time.thread_time()
        for index in range(times):
            call(index)
        best = min(best, (time.thread_time() - start) / times)
    return 1e6 * best


def _measure(mode: str, times: int) -> Bar:
    pool = _trained(mode)
    rng = random.Random(1)
    now = 300.0
    jobs = [Job(str(index), now - 2.0 * rng.random(), prompt_tokens=512) for index in range(QUEUED)]
    jobs.sort(key=lambda job: job.arrival)
    busy = Load(QUEUED, 150_000.0, 32, running=(now - 1.0,), running_batches=(32,), inflight_calls=1)
    # merge: a batch is formed from all who wait. gate: one place is free, and the head of the order is shown.
    ready = Load(QUEUED) if mode == "merge" else Load(QUEUED, inflight=pool.setpoints.max_batch_size - 1)
    shown = jobs if mode == "merge" else jobs[:1]
    observations = [_observation(mode, now + index * 0.02, 1 + index % 32, rng) for index in range(times)]
    observe = _best_us(lambda i: pool.observe(observations[i]), times)
    admit = _best_us(lambda i: pool.admit(jobs[i % QUEUED], now, busy), times)
    taken = max(1, pool.choose(shown, now, ready).take)
    choose = _best_us(lambda _: pool.choose(shown, now, ready), times // 8) / taken
    print(
        f"control per request at {QUEUED} queued, {mode}: observe {observe:.1f} + admit {admit:.1f} + "
        f"choose {choose:.1f} us (a dispatch of {taken})"
    )
    return Bar.below(f"control overhead, {mode}, us a request", observe + admit + choose, 60.0)


def overhead_bars(times: int = 2000) -> list[Bar]:
    """Measure observe, admit and choose, each per request."""
    return [_measure(mode, times) for mode in ("merge", "gate")]
