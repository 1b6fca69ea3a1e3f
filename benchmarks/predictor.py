"""How well the output-length predictor does on public data, beside what one would use without it.

    python -m benchmarks.predictor --data DIR [--quick] [--json FILE]

DIR (or TRIMTAB_DATA) holds `alpaca_eval_lengths.jsonl.gz`, `mooncake_synthetic.csv.gz` and `azure2023_conv.csv.gz`.
Everything goes through the facade as the proxy calls it: predict at arrival, observe at completion, trainings when
they fall due. Trainings run inside this process so that a run is deterministic; the swap bar uses the real process.

* AlpacaEval: 30 % of the prompts are held out, the rest is replayed through all models; then each model answers the
  held-out prompts, which it and all others see for the first time. tau is within one model, averaged over models.
  The constant is that model's own median (p90) over the replayed prompts.
* an unseen model: five models are replayed, then 50 answers of the sixth, then it is measured on held-out prompts.
  The constant is the sixth's own median over ALL the replayed prompts, which is more than the predictor was shown.
* Mooncake synthetic, Azure conversation: in order of time with completions as late as they would be; measured on the
  last 40 %, the constant being the median (p90) of the first 60 %. No text, only sizes and prefix groups.
"""

from __future__ import annotations

import argparse
import csv
import gc
import gzip
import heapq
import io
import json
import math
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bars import Bar, report
from controller.predictor import LengthPredictor, Prediction
from controller.predictor.calibration import kendall_tau, pinball
from controller.predictor.model import LengthModel, parse_model
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Rejected, Trainer, TrainingProcess, pack
from controller.predictor.worker import train, unpack


class Inline:
    """A training that is done when it is started, for runs that repeat exactly."""

    def __init__(self, job: Job) -> None:
        file = io.BytesIO()
        pack(job, file, lambda: None)
        head, raw, lines = unpack(file.getvalue())
        incumbent = parse_model(lines, names=FEATURES) if lines else None
        out = list(train(raw, head["names"], head["groups"], incumbent, seed=job.seed))
        self._result = parse_model(out, names=FEATURES) if len(out) > 1 else Rejected(out[0])

    def result(self) -> LengthModel | Rejected:
        return self._result

    def cancel(self) -> None:
        """Nothing to stop."""


class Timeline:
    """A clock that is set, not waited for."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Point(NamedTuple):
    """One measured request."""

    group: str
    actual: float
    p50: float
    p90: float
    constant50: float
    constant90: float


class Scores(NamedTuple):
    """What a table row shows."""

    tau: float
    pin50: float
    pin90: float
    coverage: float
    mae: float


def scores(points: Sequence[Point]) -> Scores:
    """Score predictions; losses relative to the constant's, tau within a group, averaged over groups."""
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point.group].append(point)
    taus = [kendall_tau([p.p50 for p in g], [p.actual for p in g]) for g in groups.values()]
    loss50 = sum(pinball(p.actual, p.p50, 0.5) for p in points) / sum(
        pinball(p.actual, p.constant50, 0.5) for p in points
    )
    loss90 = sum(pinball(p.actual, p.p90, 0.9) for p in points) / sum(
        pinball(p.actual, p.constant90, 0.9) for p in points
    )
    held = sum(p.actual <= p.p90 for p in points) / len(points)
    # |error| is twice the pinball loss at 0.5, so the MAE ratio is the same number; it is shown in tokens instead
    return Scores(
        statistics.mean(taus), loss50, loss90, held, sum(abs(p.actual - p.p50) for p in points) / len(points)
    )


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


Say = Callable[[float], tuple[float, float]]
"""From the input length to (p50, p90), all in tokens."""


def _constant(seen: Sequence[float], _: random.Random) -> Say:
    said = quantile(seen, 0.5), quantile(seen, 0.9)
    return lambda size: said


def _histogram(seen: Sequence[float], rng: random.Random) -> Say:
    bins = [int(math.log2(value + 1)) for value in seen]
    high = quantile(seen, 0.9)
    return lambda size: (1.5 * 2.0 ** rng.choice(bins) - 1, high)


RIVALS: tuple[tuple[str, Callable[[Sequence[float], random.Random], Say]], ...] = (
    ("max_tokens (1024)", lambda seen, rng: lambda size: (1024.0, 1024.0)),
    ("1.5 x input", lambda seen, rng: lambda size: (1.5 * size, 3.0 * size)),
    ("log2 histogram draw", _histogram),
    ("per-model constant", _constant),
)
"""What one would use without a predictor, made from the model's answers so far."""


class Table:
    """Rows of scores under a heading, printed as they come."""

    def __init__(self, title: str) -> None:
        print(f"\n{title}")
        print(f"  {'':<34}{'tau':>8}{'pin.5':>8}{'pin.9':>8}{'cover':>8}{'MAE':>9}")

    def row(self, name: str, runs: Sequence[Scores]) -> Scores:
        mean = Scores(*(statistics.mean(column) for column in zip(*runs, strict=True)))
        spread = f"  tau {min(r.tau for r in runs):.3f}..{max(r.tau for r in runs):.3f}" if len(runs) > 1 else ""
        figures = "".join(f"{value:>8.3f}" for value in mean[:4])
        print(f"  {name:<34}{figures}{mean.mae:>9.1f}{spread}", flush=True)
        return mean


def beats(title: str, best: Scores, rivals: dict[str, Scores]) -> list[Bar]:
    """Return a bar for each rival: the predictor's loss at p50 and p90 over its, the worse of the two, below 1."""
    return [
        Bar.below(f"{title}: losses over those of {name}", max(best.pin50 / r.pin50, best.pin90 / r.pin90), 1.0)
        for name, r in rivals.items()
    ]


# --- AlpacaEval -------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    prompt: int
    model: str
    text: str
    prompt_tokens: int
    tokens: int


def read_alpaca(data: Path) -> list[Answer]:
    with gzip.open(data / "alpaca_eval_lengths.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Answer(r["id"], r["model"], r["instruction"], r["prompt_tok_est"], r["output_tok_est"]) for r in rows]


def new_predictor(clock: Callable[[], float], **trainer: Any) -> LengthPredictor:
    return LengthPredictor(
        clock=clock, hour=lambda: 12.0, trainer=Trainer(FEATURES, now=clock(), launch=Inline, **trainer)
    )


def ask(predictor: LengthPredictor, answer: Answer) -> Prediction:
    return predictor.predict(
        model=answer.model, route="chat", text=answer.text, prompt_tokens=answer.prompt_tokens, max_tokens=None
    )


def replay(
    predictor: LengthPredictor, clock: Timeline, answers: Sequence[Answer]
) -> list[tuple[Answer, float, float]]:
    said = []
    for answer in answers:
        clock.now += 1.0
        prediction = ask(predictor, answer)
        predictor.observe(prediction, answer.tokens, "stop")
        said.append((answer, prediction.p50, prediction.p90))
    return said


def settle(predictor: LengthPredictor) -> None:
    """Let a training that is due start, and take its model over."""
    predictor.tick()
    predictor.tick()
    if predictor.calibration()["model"] is None:
        raise RuntimeError(f"no model was trained: {predictor.calibration()['trainer']}")


def split(answers: Sequence[Answer], seed: int) -> tuple[list[Answer], list[Answer]]:
    rng = random.Random(seed)
    prompts = sorted({answer.prompt for answer in answers})
    rng.shuffle(prompts)
    known = set(prompts[: int(0.7 * len(prompts))])
    shuffled = list(answers)
    rng.shuffle(shuffled)
    return [a for a in shuffled if a.prompt in known], [a for a in shuffled if a.prompt not in known]


def points(said: Sequence[tuple[Answer, float, float]], seen: dict[str, list[float]]) -> list[Point]:
    constants = {model: (quantile(values, 0.5), quantile(values, 0.9)) for model, values in seen.items()}
    return [Point(a.model, a.tokens, p50, p90, *constants[a.model]) for a, p50, p90 in said]


def lengths(answers: Sequence[Answer]) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = defaultdict(list)
    for answer in answers:
        seen[answer.model].append(float(answer.tokens))
    return seen


def fresh_copy(state: Sequence[str], clock: Timeline) -> LengthPredictor:
    """Another predictor that learned the same; what it sees from now on is its own."""
    copy = LengthPredictor(clock=clock, hour=lambda: 12.0, learn=False)
    if not copy.restore(state):
        raise RuntimeError("the state did not survive")
    return copy


def alpaca(data: Path, splits: int, *, repeats: bool) -> list[Bar]:
    answers = read_alpaca(data)
    models = sorted({answer.model for answer in answers})
    runs: dict[str, list[Scores]] = defaultdict(list)
    for seed in range(splits):
        known, held_out = split(answers, seed)
        seen = lengths(known)
        clock = Timeline()
        predictor = new_predictor(clock, rows=10**9, min_rows=len(known), every_s=1e12)
        replay(predictor, clock, known)
        settle(predictor)
        state = list(predictor.state())
        # One copy per model: a held-out prompt must not be known from the other models' answers to it.
        unseen: list[Point] = []
        for model in models:
            unseen += points(replay(fresh_copy(state, clock), clock, [a for a in held_out if a.model == model]), seen)
        runs["predictor"].append(scores(unseen))
        if repeats:
            runs["seen on one other model"].append(_seen_elsewhere(state, clock, held_out, models, seed, seen))
        rng = random.Random(seed)
        for name, make in RIVALS:
            says = {model: make(seen[model], rng) for model in models}
            said = [(a, *says[a.model](a.prompt_tokens)) for a in held_out]
            runs[name].append(scores(points(said, seen)))
        if repeats or seed == 0:
            runs["unseen model"].append(_unseen_model(known, held_out, models[seed % len(models)], seen))
    table = Table(f"AlpacaEval, unseen prompts, {splits} splits, 6 models")
    best = table.row("predictor", runs.pop("predictor"))
    unseen_model = runs.pop("unseen model")
    again = runs.pop("seen on one other model", None)
    rivals = {name: table.row(name, values) for name, values in runs.items()}
    if again:
        table.row("predictor, seen on one other model", again)
    stranger = table.row("predictor, unseen model after 50", unseen_model)
    return [
        Bar.above("alpaca tau", best.tau, 0.35),
        Bar.below("alpaca pinball(.5) / constant", best.pin50, 0.85),
        Bar.below("alpaca pinball(.9) / constant", best.pin90, 0.93),
        Bar.above("alpaca p90 coverage, low", best.coverage, 0.88),
        Bar.below("alpaca p90 coverage, high", best.coverage, 0.92),
        Bar.below("unseen model after 50, pinball(.5)", stranger.pin50, 0.90),
        *beats("alpaca", best, rivals),
    ]


def _seen_elsewhere(
    state: Sequence[str],
    clock: Timeline,
    held_out: Sequence[Answer],
    models: Sequence[str],
    seed: int,
    seen: dict[str, list[float]],
) -> Scores:
    """One model answers the held-out prompts first, then each of the others is asked them."""
    first = random.Random(seed).choice(models)
    once = fresh_copy(state, clock)
    replay(once, clock, [a for a in held_out if a.model == first])
    state = list(once.state())
    again: list[Point] = []
    for model in models:
        if model != first:
            again += points(replay(fresh_copy(state, clock), clock, [a for a in held_out if a.model == model]), seen)
    return scores(again)


def _unseen_model(
    known: Sequence[Answer], held_out: Sequence[Answer], stranger: str, seen: dict[str, list[float]]
) -> Scores:
    clock = Timeline()
    others = [a for a in known if a.model != stranger]
    predictor = new_predictor(clock, rows=10**9, min_rows=len(others), every_s=1e12)
    replay(predictor, clock, others)
    settle(predictor)
    copy = fresh_copy(list(predictor.state()), clock)
    # Prompts no other model has answered, so that only the model's scale is learned from them.
    held = [a for a in held_out if a.model == stranger]
    replay(copy, clock, held[:50])
    return scores(points(replay(copy, clock, held[50:]), seen))


# --- traces without text ----------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    at: float
    prompt_tokens: int
    tokens: int
    group: str | None


def read_trace(path: Path, size: str, tokens: str, group: str | None) -> list[Arrival]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [
            Arrival(float(r["t_s"]), int(r[size]), int(r[tokens]), r[group] if group else None)
            for r in csv.DictReader(lines)
        ]


def trace(
    title: str, arrivals: Sequence[Arrival], *, rows: int = 1_000, every_s: float = 600.0
) -> tuple[Scores, list[Bar]]:
    """Replay a trace in time; an answer of n tokens is observed 0.5 s + 30 ms * n after its arrival."""
    clock = Timeline()
    predictor = new_predictor(clock, rows=rows, every_s=every_s)
    flying: list[tuple[float, int, Prediction]] = []
    cut = int(0.6 * len(arrivals))
    first = [float(a.tokens) for a in arrivals[:cut]]
    constant50, constant90 = quantile(first, 0.5), quantile(first, 0.9)
    measured = []
    for index, arrival in enumerate(arrivals):
        while flying and flying[0][0] <= arrival.at:
            clock.now, done, prediction = heapq.heappop(flying)
            predictor.observe(prediction, arrivals[done].tokens, "stop")
        clock.now = arrival.at
        prediction = predictor.predict(
            model="m", route="chat", prompt_tokens=arrival.prompt_tokens, prefix_group=arrival.group
        )
        heapq.heappush(flying, (arrival.at + 0.5 + 0.03 * arrival.tokens, index, prediction))
        if index >= cut:
            measured.append(Point("m", arrival.tokens, prediction.p50, prediction.p90, constant50, constant90))
    table = Table(f"{title}, last 40 % of {len(arrivals)}")
    best = table.row("predictor", [scores(measured)])
    rng = random.Random(0)
    rivals = {}
    for name, make in RIVALS:
        say = make(first, rng)
        said = [Point("m", a.tokens, *say(a.prompt_tokens), constant50, constant90) for a in arrivals[cut:]]
        rivals[name] = table.row(name, [scores(said)])
    return best, beats(title.lower(), best, rivals)


# --- cost and swap ----------------------------------------------------------------------------------------------


def cost(data: Path, state: Sequence[str]) -> list[Bar]:
    """Time predict on a trained predictor, for the data's own prompts and for ones of just under 2,000 characters."""
    clock = Timeline()
    predictor = fresh_copy(state, clock)
    prompts = sorted({a.text for a in read_alpaca(data)})
    rng = random.Random(0)
    long = [" ".join(rng.sample(prompts, 60))[:1990] for _ in range(300)]
    medians = {}
    for name, texts in (("data's own prompts", prompts), ("1,990 characters", long)):
        taken = []
        for text in texts * 3:
            started = time.perf_counter()
            predictor.predict(model="m", tenant="t", route="chat", text=text, prompt_tokens=100, max_tokens=1024)
            taken.append(1e6 * (time.perf_counter() - started))
        medians[name] = quantile(taken, 0.5)
        low, high = quantile(taken, 0.1), quantile(taken, 0.99)
        print(f"  predict, {name:<22} p10 {low:6.1f}  p50 {medians[name]:6.1f}  p99 {high:6.1f} us")
    return [
        Bar.below("predict, data's own prompts, median us", medians["data's own prompts"], 120),
        Bar.below("predict, 1,990 characters, median us", medians["1,990 characters"], 120),
    ]


class Stopwatch(TrainingProcess):
    """A real training that notes how much CPU its thread uses between two moments at which others may run."""

    def __init__(self, job: Job) -> None:
        self.pieces: list[float] = []
        self._since: float | None = None
        super().__init__(job)

    def _pause(self) -> None:
        now = time.thread_time()
        if self._since is not None:
            self.pieces.append(now - self._since)
        super()._pause()
        self._since = time.thread_time()


def on_the_loop(answers: Sequence[Answer]) -> list[Bar]:
    """How long the event loop is kept, at most, by anything a predictor in service does, a real training included.

    CPU seconds of the thread, so that other programs on the machine do not count; the interpreter's collector is
    kept from walking what is there for good, as the proxy does.
    """
    clock = Timeline()
    trainings: list[Stopwatch] = []

    def launch(job: Job) -> Stopwatch:
        trainings.append(Stopwatch(job))
        return trainings[-1]

    trainer = Trainer(FEATURES, now=0.0, launch=launch, rows=10**9, min_rows=len(answers), every_s=1e12,
                      limit_s=300.0)  # fmt: skip
    predictor = LengthPredictor(clock=clock, hour=lambda: 12.0, trainer=trainer)
    spans: dict[str, list[float]] = defaultdict(list)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        started = time.thread_time()
        result = work()
        spans[name].append(1e3 * (time.thread_time() - started))
        return result

    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    for index, answer in enumerate(answers):
        clock.now += 1.0
        said = timed("predict", lambda: ask(predictor, answer))  # noqa: B023
        timed("observe", lambda: predictor.observe(said, answer.tokens, "stop"))  # noqa: B023
        if index % 50 == 0:
            timed("once a second", predictor.refresh)
            timed("report", predictor.calibration)
    timed("start a training", predictor.tick)
    if not trainings[0].done.wait(300):
        raise RuntimeError("the training did not end")
    timed("take the model over", predictor.tick)
    if predictor.calibration()["model"] is None:
        raise RuntimeError(f"no model: {predictor.calibration()['trainer']}")
    lines = predictor.state()
    while timed("a line of state", lambda: next(lines, None)) is not None:
        pass
    spans["training thread, between pauses"] = [1e3 * piece for piece in trainings[0].pieces]
    for name, taken in spans.items():
        print(f"  {name:<32} median {quantile(taken, 0.5):6.3f}  longest {max(taken):6.3f} ms CPU of {len(taken)}")
    return [Bar.below("longest on the event loop, ms of CPU", max(max(taken) for taken in spans.values()), 1.0)]


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("TRIMTAB_DATA"), help="folder with the data files")
    parser.add_argument("--quick", action="store_true", help="fewer splits and trainings, under 45 s")
    parser.add_argument("--json", help="write the bars to this file")
    options = parser.parse_args()
    if not options.data:
        parser.error("--data DIR, or TRIMTAB_DATA in the environment, is needed")
    data = Path(options.data)
    # As in service, except that the quick run trains on the long trace only a few times.
    rhythm: dict[str, Any] = {"rows": 8_000, "every_s": 1_500.0} if options.quick else {}
    bars = alpaca(data, 3 if options.quick else 10, repeats=not options.quick)
    mooncake = read_trace(data / "mooncake_synthetic.csv.gz", "input_tokens", "output_tokens", "first_block_id")
    result, against = trace("Mooncake synthetic", mooncake)
    bars += [
        *against,
        Bar.above("mooncake synthetic tau", result.tau, 0.62),
        Bar.below("mooncake synthetic MAE / constant", result.pin50, 0.42),
    ]
    azure = read_trace(data / "azure2023_conv.csv.gz", "context_tokens", "generated_tokens", None)
    result, against = trace("Azure 2023 conversation", azure, **rhythm)
    bars += [Bar.above("azure conversation tau", result.tau, 0.54), *against]
    print("\nCost")
    clock = Timeline()
    jobs: list[Job] = []

    def keep(job: Job) -> Inline:
        jobs.append(job)
        return Inline(job)

    answers = read_alpaca(data)
    predictor = LengthPredictor(
        clock=clock,
        hour=lambda: 12.0,
        trainer=Trainer(FEATURES, now=0.0, launch=keep, rows=10**9, min_rows=len(answers), every_s=1e12),
    )
    replay(predictor, clock, answers)
    settle(predictor)
    bars += cost(data, list(predictor.state()))
    bars += on_the_loop(answers)
    bars += swap(predictor, jobs[0])
    print()
    return report(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
