"""Traces without text: only times, sizes and prefix groups."""

from __future__ import annotations

import csv
import gzip
import heapq
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.predictor.replaying import Timeline, new_predictor
from benchmarks.predictor.scoring import RIVALS, Point, Scores, Table, beats, quantile, scores
from controller.predictor import Prediction


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
