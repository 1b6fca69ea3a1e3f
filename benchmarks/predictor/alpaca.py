"""AlpacaEval: six models answer the same prompts, of which some are held out."""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.predictor.replaying import Timeline, fresh_copy, new_predictor, settle
from benchmarks.predictor.scoring import RIVALS, Point, Scores, Table, beats, quantile, scores
from controller.predictor import LengthPredictor, Prediction

FILE = "alpaca_eval_lengths.jsonl.gz"


class Answer(NamedTuple):
    prompt: int
    model: str
    text: str
    prompt_tokens: int
    tokens: int


def read_alpaca(file: Path) -> list[Answer]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Answer(r["id"], r["model"], r["instruction"], r["prompt_tok_est"], r["output_tok_est"]) for r in rows]


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


def alpaca(answers: Sequence[Answer], splits: int, *, repeats: bool) -> list[Bar]:
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
