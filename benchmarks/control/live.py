"""Bar 5: the same controller through the real proxy, over real sockets, against an upstream that takes real time.

The upstream is the simulated batch profile in real time: one batch at a time, the same seeded luck. Time runs
`SPEED` times as fast as the profile says: the upstream sleeps, and requests come, so much quicker, and the controller
is told times of the slow clock, so that its constants mean what they always mean. The static oracle comes from the
simulator on the same arrivals, where nothing costs any overhead; the live run has to pay for sockets, timers and the
event loop, `SPEED` times over.

Everything the controller was told is journaled, and asked again of a fresh one afterwards.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, process_time
from typing import Any

import aiohttp
from aiohttp import web

from benchmarks.bars import Bar
from benchmarks.control.merge import run
from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation
from controller.replay import Replayed, replay
from controller.setpoints import Bounds, Setpoints
from controller.simulator.arrivals import Request
from controller.simulator.run import GRID, LawSpec
from controller.simulator.scenarios import Scenario, design_scenarios
from controller.slo import SLO
from controller.verdict import Choice, Verdict
from policies.base import Job
from proxy.clock import LoopClock
from proxy.config.model import Config
from proxy.dispatch.pool import Pool
from proxy.http.incoming import Limits
from proxy.http.server import DataServer
from proxy.serving.handler import Handler
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable

__all__ = ["DAYS", "live_bars"]

SPEED = 3.0
DAYS = ("step @ 6 s", "overload @ 6 s", "bursts @ 6 s")
LOST = 0.01
"""Share of a day for which the machine may have stood still before the day is played a second time."""
_STALL_S = 0.02
"""A timer that is later than this says that the machine stood still, and no shorter time is told from noise."""
_AFTER_S = 10.0
"""Of the slow clock: how long the last answers are waited for, beyond their target."""


class FastController(PoolController):
    """A controller that sees the slow clock: times go in multiplied by SPEED, and waits come out divided by it."""

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""
        super().observe(_slow_observation(obs))

    def admit(self, job: Job, now: float, load: Load, waiting: Sequence[Job] = ()) -> Verdict:
        """Say whether `job` may queue."""
        slow_waiting = [_slow_job(one) for one in waiting]
        verdict = super().admit(_slow_job(job), now * SPEED, _slow_load(load), slow_waiting)
        return Verdict(verdict.admitted, verdict.reason, verdict.predicted_s, verdict.retry_after_s / SPEED)

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say whom to send now."""
        return super().choose([_slow_job(job) for job in candidates], now * SPEED, _slow_load(load))

    def window_s(self, now: float, load: Load) -> float:
        """Return for how long the first may be held."""
        return super().window_s(now * SPEED, _slow_load(load)) / SPEED

    def retry_after_s(self, now: float, load: Load) -> float:
        """Return when to try again."""
        return super().retry_after_s(now * SPEED, _slow_load(load)) / SPEED

    def tick(self, now: float, load: Load) -> Decision | None:
        """Retune the knobs."""
        return super().tick(now * SPEED, _slow_load(load))


def _slow(value: float | None) -> float | None:
    return None if value is None else value * SPEED


def _slow_job(job: Job) -> Job:
    return replace(job, arrival=job.arrival * SPEED, deadline=_slow(job.deadline))


def _slow_load(load: Load) -> Load:
    return replace(load, running=tuple([start * SPEED for start in load.running]))


def _slow_observation(obs: Observation) -> Observation:
    return replace(
        obs,
        arrival=obs.arrival * SPEED,
        done=obs.done * SPEED,
        dispatched=_slow(obs.dispatched),
        first_byte=_slow(obs.first_byte),
        last_byte=_slow(obs.last_byte),
    )


class Outcome:
    """What clients saw of one live day, and whether the machine was there all the time."""

    def __init__(self) -> None:
        self.lost_s = 0.0
        """For how long nobody could do anything, of the slow clock: the sum of all stalls."""
        self.lost_cpu_s = 0.0
        """For how much of that this process computed, of the slow clock; the rest is the machine's."""
        self.calls_s = 0.0
        """What the profile says that the upstream's calls took, of the slow clock."""
        self.extra_s = 0.0
        """What they took beyond that."""
        self.on_time = 0
        self.late = 0
        self.refused = 0
        self.failed = 0

    @property
    def served(self) -> int:
        """Answers, late ones included."""
        return self.on_time + self.late


class ProfileServer:
    """Embeds lists of texts, one list at a time, in the time that the profile takes for a batch of that size."""

    def __init__(self, day: Scenario, seed: int, started: Callable[[], float], outcome: Outcome) -> None:
        self._plant = day.plant()
        self._rng = random.Random(seed)
        self._turn = asyncio.Lock()
        self._started = started
        self._outcome = outcome
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> ProfileServer:
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_get("/{path:.*}", _well)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        async with self._turn:
            began = monotonic()
            batch = [Request(0.0)] * len(texts)
            seconds = self._plant.service_s(batch, (began - self._started()) * SPEED, self._rng)
            # To the point in time, so that a late timer does not add up.
            await asyncio.sleep(began + seconds / SPEED - monotonic())
            self._outcome.calls_s += seconds
            self._outcome.extra_s += (monotonic() - began) * SPEED - seconds
        data = [{"object": "embedding", "index": index, "embedding": [0.0]} for index in range(len(texts))]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return web.json_response({"object": "list", "model": "m", "data": data, "usage": usage})


async def _well(_: web.Request) -> web.Response:
    """Answer the proxy's health probes."""
    return web.json_response({})


async def play_live(day: Scenario, seed: int, lines: list[str]) -> Outcome:
    """Send one day's requests through a proxy of its own and count what comes back in time."""
    zero = monotonic()
    outcome = Outcome()
    async with ProfileServer(day, seed, lambda: zero, outcome) as upstream:
        config = Config.model_validate(_config(day, upstream.url))
        clock = LoopClock(asyncio.get_running_loop())
        controller = FastController(
            "default",
            journal=lines.append,
            slo=SLO(e2e_s=day.slo_s),
            setpoints=Setpoints(8, 0.0),
            bounds=Bounds(1, 32, 0.0, 250.0),
            law="deadline",
            mode="merge",
            now=clock.now() * SPEED,
        )
        pool = Pool(config.pools[0], clock=clock, controller=controller)
        handler = Handler(RouteTable([pool]), limits=Limits(), lifecycle=Lifecycle(), trust_headers=True)
        server = DataServer(handler)
        await server.start("127.0.0.1", 0)
        running = [asyncio.create_task(_tick(pool, clock)), asyncio.create_task(_watch(outcome))]
        try:
            zero = monotonic()
            await _send_all(day, seed, f"http://127.0.0.1:{server.port}/v1/embeddings", outcome)
        finally:
            for task in running:
                task.cancel()
            await server.stop()
            pool.abort()
    return outcome


def _config(day: Scenario, upstream: str) -> dict[str, Any]:
    return {
        "upstreams": [upstream],
        "dispatch": "merge",
        "slo": {"e2e_ms": 1000.0 * day.slo_s / SPEED},
        "setpoints": {"max_batch_size": {"initial": 8, "max": 32}, "window_ms": 0},
    }


async def _tick(pool: Pool, clock: LoopClock) -> None:
    due = clock.now()
    while True:
        due += 1.0 / SPEED
        await asyncio.sleep(due - clock.now())
        pool.tick(clock.now())


async def _watch(outcome: Outcome) -> None:
    """Measure how late a timer is that nothing but a busy machine, or a busy loop, makes late."""
    while True:
        due, cpu = monotonic() + 0.01, process_time()
        await asyncio.sleep(0.01)
        late_s = monotonic() - due
        if late_s > _STALL_S:
            outcome.lost_s += late_s * SPEED
            outcome.lost_cpu_s += min(late_s, process_time() - cpu) * SPEED


async def _send_all(day: Scenario, seed: int, url: str, outcome: Outcome) -> None:
    """Send every request at its time, whatever became of the ones before, and time it from when it was due."""
    timeout = aiohttp.ClientTimeout(total=(day.slo_s + _AFTER_S) / SPEED)
    body = json.dumps({"model": "m", "input": "text"}).encode()
    headers = {"content-type": "application/json"}
    started = monotonic()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers
    ) as session:

        async def one(due: float) -> None:
            try:
                async with session.post(url, data=body) as answer:
                    await answer.read()
                    status = answer.status
            except (aiohttp.ClientError, TimeoutError):
                outcome.failed += 1
                return
            if status != 200:
                outcome.refused += 1
            elif (monotonic() - due) * SPEED <= day.slo_s:
                outcome.on_time += 1
            else:
                outcome.late += 1

        async with asyncio.TaskGroup() as group:
            for request in day.requests(seed):
                due = started + request.arrival / SPEED
                if due > monotonic():
                    await asyncio.sleep(due - monotonic())
                group.create_task(one(due))


def live_bars(horizon_s: float, seeds: Sequence[int], names: Sequence[str] = DAYS, tries: int = 2) -> list[Bar]:
    """Bar 5: goodput through the proxy over the simulated oracle's, and whether a replay decides the same.

    A day on which the machine stood still is played up to `tries` times.
    """
    print(f"through the proxy, {SPEED:g} times as fast as the profile, days of {horizon_s:g} s:")
    worst, different, calls = float("inf"), 0, 0
    days = [cell for cell in design_scenarios(horizon_s) if cell.label in names]
    for day in days:
        shares = []
        for seed in seeds:
            oracle = max(run(day, LawSpec("fixed", size=size), seed).figures().goodput for size in GRID)
            simulated = run(day, LawSpec("deadline"), seed).figures().goodput
            print(
                f"  {day.label} seed {seed}: oracle {oracle:.3f}/s, simulated {100 * simulated / oracle:.1f}% of it"
            )
            outcome, replayed = _steadiest(day, seed, oracle, tries)
            calls += sum(again.calls.total() for again in replayed)
            different += sum(len(again.different) for again in replayed)
            shares.append(outcome.on_time / horizon_s / oracle)
        worst = min(worst, sum(shares) / len(shares))
    return [
        Bar.above("through the proxy: deadline / simulated oracle, worst day", worst, 0.94),
        Bar.below(f"through the proxy: answers that differ in a replay of {calls} calls", float(different), 0.0),
    ]


def _steadiest(day: Scenario, seed: int, oracle: float, tries: int) -> tuple[Outcome, list[Replayed]]:
    """Play a day, again if the machine stood still, and return what the steadier machine gave; print both.

    Chosen by the time that the machine lost and not by goodput, so that no luck is chosen.
    """
    best: Outcome | None = None
    replayed = []
    for _ in range(tries):
        lines: list[str] = []
        outcome = asyncio.run(play_live(day, seed, lines))
        again = replay(lines)["default"]
        replayed.append(again)
        print(
            f"    {outcome.on_time / day.horizon_s:.3f}/s, {100 * outcome.on_time / day.horizon_s / oracle:.1f}%; "
            f"late {100 * outcome.late / max(1, outcome.served):.1f}%, refused {outcome.refused}, "
            f"failed {outcome.failed}; stood still for {outcome.lost_s:.1f} s "
            f"({outcome.lost_cpu_s:.1f} s of it computing), calls {outcome.extra_s:.1f} s longer "
            f"than {outcome.calls_s:.0f} s; replayed {again.calls.total()} calls and {len(again.decisions)} "
            f"decisions, {len(again.different)} differ",
            flush=True,
        )
        if best is None or outcome.lost_s < best.lost_s:
            best = outcome
        if best.lost_s <= LOST * day.horizon_s:
            break
    assert best is not None
    return best, replayed
