"""What a prediction costs, how long the event loop is kept, and what a training process disturbs."""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.bars import Bar
from benchmarks.predictor.alpaca import Answer, ask
from benchmarks.predictor.replaying import Timeline, fresh_copy
from benchmarks.predictor.scoring import quantile
from controller.predictor import LengthPredictor
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Rejected, Trainer, TrainingProcess
from proxy.run import calm_collector


def cost(answers: Sequence[Answer], whose: str, state: Sequence[str]) -> list[Bar]:
    """Time predict on a trained predictor, for the prompts of `answers` and for ones of just under 2,000 characters.

    `whose` says what prompts they are.
    """
    clock = Timeline()
    predictor = fresh_copy(state, clock)
    prompts = sorted({answer.text for answer in answers})
    own = f"{whose} prompts"
    rng = random.Random(0)
    long = [" ".join(rng.sample(prompts, 60))[:1990] for _ in range(300)]
    medians = {}
    for name, texts in ((own, prompts), ("1,990 characters", long)):
        taken = []
        for text in texts * 3:
            started = time.perf_counter()
            predictor.predict(model="m", tenant="t", route="chat", text=text, prompt_tokens=100, max_tokens=1024)
            taken.append(1e6 * (time.perf_counter() - started))
        medians[name] = quantile(taken, 0.5)
        low, high = quantile(taken, 0.1), quantile(taken, 0.99)
        print(f"  predict, {name:<22} p10 {low:6.1f}  p50 {medians[name]:6.1f}  p99 {high:6.1f} us")
    return [
        Bar.below(f"predict, {own}, median us", medians[own], 120),
        Bar.below("predict, 1,990 characters, median us", medians["1,990 characters"], 120),
    ]


class Stopwatch(TrainingProcess):
    """A real training that notes how long its thread works between two moments at which others may run."""

    def __init__(self, job: Job) -> None:
        self.pieces: list[tuple[float, float]] = []
        """Seconds of CPU, and by the clock; looking whether the process has ended left out."""
        self._since: tuple[float, float] | None = None
        super().__init__(job)

    def _pause(self) -> None:
        if self._since is not None:
            used, clocked = self._since
            self.pieces.append((time.thread_time() - used, time.perf_counter() - clocked))
        super()._pause()
        waits = self._process is not None and self._process.returncode is None
        self._since = None if waits else (time.thread_time(), time.perf_counter())


PLAYS = 3
"""How often the same requests are played, unless less is asked for. A call takes as long as the quickest of its
plays: it does the same work in all of them, and a machine that wakes up from idling takes ten times as long for it,
which no clock tells apart."""

Spans = dict[str, list[tuple[float, float]]]
"""Seconds of CPU and by the clock of each call, by what was called."""


def on_the_loop(answers: Sequence[Answer], times: int = PLAYS) -> list[Bar]:
    """How long the event loop is kept, at most, by anything a predictor in service does, a real training included.

    CPU seconds of the thread count, so that other programs on the machine do not; what the clock said is shown
    beside them. The interpreter's collector runs as it does in the proxy.
    """
    plays = [_play(answers) for _ in range(times)]
    longest = 0.0
    for name in plays[0]:
        quickest = [min(call) for call in zip(*(play[name] for play in plays), strict=True)]
        cpu_s, wall_s = zip(*quickest, strict=True)
        longest = max(longest, 1e3 * max(cpu_s))
        slowest = 1e3 * max(cpu for play in plays for cpu, _ in play[name])
        print(
            f"  {name:<32} median {1e3 * quantile(cpu_s, 0.5):6.3f}  longest {1e3 * max(cpu_s):6.3f} ms CPU of "
            f"{len(cpu_s)}; by the clock {1e3 * max(wall_s):.3f}; slowest single play {slowest:.3f} ms CPU"
        )
    return [Bar.below("longest on the event loop, ms of CPU", longest, 1.0)]


def _play(answers: Sequence[Answer]) -> Spans:
    clock = Timeline()
    trainings: list[Stopwatch] = []

    def launch(job: Job) -> Stopwatch:
        trainings.append(Stopwatch(job))
        return trainings[-1]

    trainer = Trainer(FEATURES, now=0.0, launch=launch, rows=10**9, min_rows=len(answers), every_s=1e12,
                      limit_s=300.0)  # fmt: skip
    predictor = LengthPredictor(clock=clock, hour=lambda: 12.0, trainer=trainer)
    spans: Spans = defaultdict(list)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        clocked, started = time.perf_counter(), time.thread_time()
        result = work()
        spans[name].append((time.thread_time() - started, time.perf_counter() - clocked))
        return result

    calm_collector()
    for index, answer in enumerate(answers):
        clock.now += 1.0
        said = timed("predict", lambda: ask(predictor, answer))  # noqa: B023
        timed("observe", lambda: predictor.observe(said, answer.tokens, "stop"))  # noqa: B023
        if index % 50 == 0:
            timed("once a second", predictor.refresh)
            timed("report", predictor.calibration)
    started = time.monotonic()
    while not trainings[0].done.is_set():
        if time.monotonic() - started > 300.0:
            raise RuntimeError("the training did not end")
        ask(predictor, answers[0])  # requests go on meanwhile
    timed("take the model over", predictor.tick)
    if predictor.calibration()["model"] is None:
        raise RuntimeError(f"no model: {predictor.calibration()['trainer']}")
    lines = predictor.state()
    while timed("a line of state", lambda: next(lines, None)) is not None:
        pass
    spans["training thread, between pauses"] = trainings[0].pieces
    gc.unfreeze()
    return spans


def swap(predictor: LengthPredictor, job: Job) -> list[Bar]:
    """Train once more in the real process, and watch what the calling thread notices of it."""
    started = time.perf_counter()
    training = TrainingProcess(job)
    call_s = time.perf_counter() - started
    slowest = 0.0
    while (result := training.result()) is None:
        before = time.perf_counter()
        predictor.predict(model="m", text="How long does a training hold up a prediction?", prompt_tokens=9)
        slowest = max(slowest, time.perf_counter() - before)
        time.sleep(0.002)
    wall_s = time.perf_counter() - started
    if isinstance(result, Rejected):
        raise RuntimeError(f"the training process gave no model: {result.reason}")
    rows = result.report["rows"]
    print(f"  training process, {rows} rows: {wall_s:.1f} s beside the caller, {1e3 * call_s:.2f} ms to start")
    print(f"  slowest prediction meanwhile: {1e3 * slowest:.2f} ms (this machine's other work included)")
    return [Bar.below("swap parity |exported - sklearn|", max(result.parity, result.report["parity"]), 1e-9)]
