"""Bar 7: an engine whose queue is ordered by predicted length: of made-up predictions, and of the predictor's own."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple

from benchmarks.bars import Bar
from benchmarks.predictor.alpaca import FILE, Answer, ask, read_alpaca, replay, split
from benchmarks.predictor.replaying import Timeline, new_predictor, settle
from controller.observation import Result
from controller.predictor.calibration import kendall_tau
from controller.predictor.trainer import sklearn_installed
from controller.simulator.arrivals import Request, chat_lengths, poisson_arrivals
from controller.simulator.engine import EnginePlant
from controller.simulator.gate import simulate_gate
from controller.simulator.record import Record, quantile
from controller.simulator.run import LawSpec
from controller.slo import SLO
from policies.base import Policy
from policies.registry import create_policy

WARM_UP_S = 120.0


class Sizes(NamedTuple):
    """What a request asks for, in tokens."""

    prompt: int
    output: int
    predicted: float


class Row(NamedTuple):
    """What became of one day."""

    in_time: float
    """Share of all requests."""
    median_s: float
    """End to end, of those that were served."""
    longest: float
    """Share in time of the longest quarter."""
    service_s: float
    """Median of the same without the wait: no order gets below that of what it serves."""


Draw = Callable[[int, random.Random], Sequence[Sizes]]
"""So many requests, drawn at random."""


def _day(draw: Draw, rate: float, horizon_s: float, seed: int) -> list[Request]:
    rng = random.Random(100 + seed)
    times = poisson_arrivals(lambda _: rate, rate, horizon_s, rng)
    return [Request(time, *sizes) for time, sizes in zip(times, draw(len(times), rng), strict=True)]


def _chat(_: int, tau: float = 0.36) -> Draw:
    """Chat lengths, and predictions whose rank correlation (Kendall) with the truth is `tau`."""

    def draw(count: int, rng: random.Random) -> list[Sizes]:
        lengths = chat_lengths(count, 174.0, rng)
        return [Sizes(64, *pair) for pair in zip(lengths, _guesses(lengths, tau, rng), strict=True)]

    return draw


def _guesses(lengths: Sequence[int], tau: float, rng: random.Random) -> list[float]:
    """Return predictions that are distributed as `lengths` are, with a rank correlation (Kendall) of `tau` to them.

    A Gaussian copula: its rho is sin(pi * tau / 2).
    """
    count = len(lengths)
    rho = math.sin(tau * math.pi / 2.0)
    normal = NormalDist()
    ordered = sorted(lengths)
    predicted = [0.0] * count
    for rank, index in enumerate(sorted(range(count), key=lambda i: (lengths[i], i))):
        z = normal.inv_cdf((rank + 0.5) / count)
        noisy = rho * z + math.sqrt(1.0 - rho * rho) * rng.gauss(0.0, 1.0)
        predicted[index] = float(ordered[min(count - 1, int(normal.cdf(noisy) * count))])
    return predicted


def _missing(data: Path | None) -> str:
    """Return what is missing to ask the real predictor, empty when nothing is."""
    if data is None or not (data / FILE).exists():
        return f"it needs --data DIR (or TRIMTAB_DATA) with {FILE}"
    return "" if sklearn_installed() else "it needs scikit-learn (the extra `predictor`)"


def _alpaca(answers: Sequence[Answer], seed: int) -> Draw:
    """One model's answers to prompts that were held out, and what a predictor trained on the others says of them.

    The predictor has seen six models answer the other 70 % of the prompts. It learns nothing from what it is asked
    here, so that a prompt that is drawn twice is as new the second time.
    """
    known, held_out = split(answers, seed)
    models = sorted({answer.model for answer in answers})
    mine = [answer for answer in held_out if answer.model == models[seed % len(models)]]
    clock = Timeline()
    predictor = new_predictor(clock, rows=10**9, min_rows=len(known), every_s=1e12)
    replay(predictor, clock, known)
    settle(predictor)
    pairs = [Sizes(a.prompt_tokens, a.tokens, ask(predictor, a).p50) for a in mine]
    tau = kendall_tau([size.predicted for size in pairs], [float(size.output) for size in pairs])
    print(f"ordering, real predictor, seed {seed}: {mine[0].model}, {len(pairs)} prompts never seen, tau {tau:.3f}")
    truth, said = (sorted(column) for column in zip(*((size.output, size.predicted) for size in pairs), strict=True))
    print(f"  nine answers in ten have {_ninety(truth)} tokens, nine predictions in ten are of {_ninety(said)}")
    return lambda count, rng: rng.choices(pairs, k=count)


def _ninety(ordered: Sequence[float]) -> str:
    return f"{quantile(ordered, 0.05):.0f} to {quantile(ordered, 0.95):.0f}"


def _order(requests: Sequence[Request], policy: Policy, seed: int, horizon_s: float) -> Record:
    law = LawSpec("fixed", size=16, highest=16, options={"admission": False})
    plant = EnginePlant(prefill_token_s=45e-3 / 512.0, kv_tokens=1_000_000)
    return simulate_gate(
        requests,
        law.controller(SLO(ttft_s=10.0), "gate"),
        plant,
        horizon_s=horizon_s,
        seed=seed,
        policy=policy,
        max_wait_s=10.0,
    )


def ordering_bars(horizon_s: float, seeds: Sequence[int], data: Path | None, *, ceilings: bool = True) -> list[Bar]:
    """Bar 7: ordering by predicted length, aged, against first come, first served; ttft of 10 s.

    Once with lengths as well predicted as a tau of 0.36 says, once with what the trained predictor says of prompts
    that it has not seen, where the data is there. With `ceilings`, what others would predict is shown beside it.
    """
    bars = _compare("tau 0.36", horizon_s, {seed: _chat(seed) for seed in seeds}, ceilings)
    missing = _missing(data)
    if missing:
        print(f"ordering with the real predictor's lengths: skipped, {missing}")
        return bars
    assert data is not None
    answers = read_alpaca(data / FILE)
    return bars + _compare("real predictor", horizon_s, {seed: _alpaca(answers, seed) for seed in seeds}, ceilings)


def _compare(what: str, horizon_s: float, traffic: Mapping[int, Draw], ceilings: bool) -> list[Bar]:
    rows: dict[tuple[float, str], list[Row]] = defaultdict(list)
    for seed, draw in traffic.items():
        flood = _order(_day(draw, 10.0, 300.0, seed), create_policy("fcfs"), 0, 300.0)
        capacity = sum(fate.result is Result.OK and fate.done <= 300.0 for fate in flood.fates) / 300.0
        print(f"ordering, {what}, seed {seed}: capacity of sixteen places {capacity:.2f} requests a second")
        for load in (1.3, 0.7):
            requests = _day(draw, load * capacity, horizon_s, seed)
            for name in ("fcfs", "predicted"):
                row = _ordering_row(_order(requests, create_policy(name), seed, horizon_s))
                rows[load, name].append(row)
                _show(f"at {load:g}x load, {name}", row)
            if load > 1.0 and ceilings:
                for label, told in _ceilings(requests, seed).items():
                    _show(f"  {label}, unaged", _ordering_row(_order(told, _unaged(), seed, horizon_s)))

    def mean(load: float, name: str, column: int) -> float:
        return fmean(row[column] for row in rows[load, name])

    return [
        Bar.above(
            f"ordering, {what}, at 1.3x load: points in time over fcfs",
            100 * (mean(1.3, "predicted", 0) - mean(1.3, "fcfs", 0)),
            5.0,
        ),
        Bar.above(
            f"ordering, {what}, at 1.3x load: median better by",
            mean(1.3, "fcfs", 1) / mean(1.3, "predicted", 1),
            2.0,
        ),
        Bar.above(
            f"ordering, {what}: longest quarter served over fcfs",
            mean(1.3, "predicted", 2) / mean(1.3, "fcfs", 2),
            0.85,
        ),
        Bar.above(
            f"ordering, {what}, at 0.7x load: in time over fcfs",
            mean(0.7, "predicted", 0) / mean(0.7, "fcfs", 0),
            0.99,
        ),
    ]


def _unaged() -> Policy:
    """Shortest first whatever the wait: what ageing is measured against."""
    return create_policy("sjf", {"alpha": 0.01, "prompt_weight": 0.0, "max_slack_s": 1e9})


def _ceilings(requests: Sequence[Request], seed: int) -> dict[str, list[Request]]:
    """Return the same requests with what others would be told of their lengths.

    The predictor itself, whoever ranks as well (but guesses as widely as lengths vary), and whoever knows.
    """
    lengths = [request.output_tokens for request in requests]
    truth = [float(length) for length in lengths]
    said = [request.predicted_tokens or 0.0 for request in requests]
    tau = kendall_tau(said, truth)
    told = {
        "as predicted": said,
        f"made up, tau {tau:.2f}": _guesses(lengths, tau, random.Random(200 + seed)),
        "the true lengths": truth,
    }
    return {
        label: [replace(request, predicted_tokens=tokens) for request, tokens in zip(requests, column, strict=True)]
        for label, column in told.items()
    }


def _show(what: str, row: Row) -> None:
    text = f"{100 * row.in_time:.1f}% in time, longest quarter served {100 * row.longest:.0f}%"
    print(f"  {what:32}: {text}, median {row.median_s:.1f} s, {row.service_s:.1f} s of service", flush=True)


def _ordering_row(record: Record) -> Row:
    # The first minutes are spent filling the queue.
    fates = [fate for fate in record.fates if fate.arrival >= WARM_UP_S]
    served = [fate for fate in fates if fate.result is Result.OK]
    in_time = sum(record.on_time(fate) for fate in served) / len(fates)
    threshold = quantile(sorted(fate.output_tokens for fate in fates), 0.75)
    longest = [fate for fate in fates if fate.output_tokens >= threshold]
    kept = sum(record.on_time(fate) for fate in longest) / max(1, len(longest))
    service = quantile(sorted(fate.done - (fate.dispatched or 0.0) for fate in served), 0.5)
    return Row(in_time, quantile(sorted(fate.e2e for fate in served), 0.5), kept, service)
