"""`trimtab simulate`: what would P99 and goodput be, if."""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.journal import JournalError, replay
from controller.laws import LAWS, make_law
from controller.loop import PoolController
from controller.simulator import report
from controller.simulator.arrivals import (
    Request,
    chat_lengths,
    gamma_arrivals,
    mmpp_arrivals,
    poisson_arrivals,
    read_trace,
    requests_at,
    speed_up,
)
from controller.simulator.engine import EnginePlant
from controller.simulator.plants import BatchPlant, Faults
from controller.simulator.record import Record
from controller.simulator.run import LawSpec, play, play_engine
from controller.slo import SLO

__all__ = ["main"]

_BARE = "/no-admission"
_SHOWN = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run simulations as told by the command line; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        return _run(options)
    except (OSError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.replay:
        return _replay(Path(options.replay))
    slo = SLO(
        e2e_s=_seconds(options.slo_e2e_ms),
        ttft_s=_seconds(options.slo_ttft_ms),
        tpot_s=_seconds(options.slo_tpot_ms),
        quantile=options.quantile,
    )
    if not any(True for _ in slo.targets()):
        slo = SLO(e2e_s=6.0, quantile=options.quantile)
    laws = [name.strip() for name in options.law.split(",") if name.strip()]
    for name in laws:
        make_law(name.removesuffix(_BARE))
    requests = _requests(options)
    runs: dict[str, Record] = {}
    decisions: dict[str, list[dict[str, Any]]] = {}
    for name in laws:
        if sys.stderr.isatty():
            print(f"simulating {len(requests)} requests under {name} ...", file=sys.stderr)
        runs[name], controller = _simulate(name, requests, slo, options)
        decisions[name] = [entry.as_dict() for entry in controller.decisions.since(0)]
    print(report.table(runs))
    if options.json:
        Path(options.json).write_text(report.as_json(runs, decisions) + "\n", encoding="utf-8")
    if options.plot:
        try:
            report.plot(runs, Path(options.plot))
        except ImportError as error:
            raise ValueError("--plot needs matplotlib: install trimtab[plots]") from error
    return 0


def _simulate(
    name: str, requests: Sequence[Request], slo: SLO, options: argparse.Namespace
) -> tuple[Record, PoolController]:
    kept: list[PoolController] = []

    def on_tick(_: float, controller: PoolController) -> None:
        if not kept:
            kept.append(controller)

    law = LawSpec(
        name.removesuffix(_BARE),
        options={"admission": not (options.no_admission or name.endswith(_BARE))},
        size=options.size,
        window_ms=options.window_ms,
        highest=options.max_size,
    )
    faults = _faults(options)
    if options.plant == "engine":
        engine = EnginePlant(
            kv_tokens=options.kv_tokens,
            prefill_token_s=options.prefill_us_per_token * 1e-6,
            max_num_seqs=options.max_num_seqs,
            faults=faults,
        )
        record = play_engine(
            law, requests, engine, slo, horizon_s=options.duration, seed=options.seed, on_tick=on_tick
        )
    else:
        batch = BatchPlant(knee_at=options.knee_at, faults=faults)
        record = play(
            law,
            requests,
            batch,
            slo,
            horizon_s=options.duration,
            seed=options.seed,
            slots=options.slots,
            on_tick=on_tick,
        )
    return record, kept[0]


def _faults(options: argparse.Namespace) -> Faults:
    spans = tuple(_span(text) for text in options.slow or ())
    failing = tuple(_span(text)[:2] for text in options.fail or ())
    frozen = tuple(_span(text)[:2] for text in options.freeze_metrics or ())

    def slow(now: float) -> float:
        factor = 1.0
        for start, end, times in spans:
            if start <= now < end:
                factor *= times
        return factor

    return Faults(slow=slow, failing=failing, frozen_metrics=frozen)


def _span(text: str) -> tuple[float, float, float]:
    try:
        numbers = [float(part) for part in text.split(":")]
        start, end = numbers[0], numbers[1]
    except (IndexError, ValueError) as error:
        raise ValueError(f"{text!r} is no span; write FROM:TO or FROM:TO:FACTOR in seconds") from error
    factor = numbers[2] if len(numbers) > 2 else 1.0
    if end <= start or factor <= 0.0:
        raise ValueError(f"{text!r} is no span; it must end after it starts, and its factor be above 0")
    return start, end, factor


def _requests(options: argparse.Namespace) -> list[Request]:
    path = options.trace or options.from_log
    if path:
        requests = speed_up(read_trace(Path(path)), options.speed)
        if options.rate is not None:
            span = max(request.arrival for request in requests) or 1.0
            requests = speed_up(requests, options.rate * span / len(requests))
        return [request for request in requests if request.arrival < options.duration]
    rng = random.Random(options.seed)
    rate = 4.0 if options.rate is None else options.rate
    if options.arrivals == "gamma":
        times = gamma_arrivals(rate, options.cv, options.duration, rng)
    elif options.arrivals == "mmpp":
        times = mmpp_arrivals((rate / 4.0, 2.25 * rate), (20.0, 10.0), options.duration, rng)
    else:
        surges = tuple(_span(text) for text in options.surge or ())
        highest = rate * max([1.0, *(factor for _, _, factor in surges)])

        def surging(now: float) -> float:
            return rate * next((factor for start, end, factor in surges if start <= now < end), 1.0)

        times = poisson_arrivals(surging, highest, options.duration, rng)
    outputs = chat_lengths(len(times), options.output_tokens, rng) if options.random_lengths else None
    return requests_at(
        times, prompt_tokens=options.prompt_tokens, outputs=outputs, output_tokens=options.output_tokens
    )


def _replay(path: Path) -> int:
    """Ask fresh controllers what a journal's were asked; print whether they answer alike. 1 when one does not."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        try:
            found = replay(lines)
        except JournalError as error:
            raise ValueError(f"{path}: {error}") from error
    for name, pool in found.items():
        asked = ", ".join(f"{count} {call}" for call, count in sorted(pool.calls.items()))
        print(f"pool {name}: {asked}; {len(pool.decisions)} decisions; {len(pool.different)} answers differ")
        for number, call, then, now in pool.different[:_SHOWN]:
            print(f"  line {number}, {call}: {json.dumps(then)} then, {json.dumps(now)} now")
    return 1 if any(pool.different for pool in found.values()) else 0


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trimtab simulate", description="Play a day of traffic through the live controller in virtual time."
    )
    source = parser.add_argument_group("traffic")
    source.add_argument("--trace", metavar="FILE", help="recorded arrivals: CSV or JSON lines, gzipped or not")
    source.add_argument("--from-log", metavar="FILE", help="the proxy's own access log in JSON lines")
    source.add_argument(
        "--replay", metavar="FILE", help="a journal of live controllers (log.journal): ask them the same again"
    )
    source.add_argument("--speed", type=float, default=1.0, help="replay so many times as fast")
    source.add_argument("--rate", type=float, help="requests a second on average (a trace is sped up to it)")
    source.add_argument("--arrivals", choices=("poisson", "gamma", "mmpp"), default="poisson")
    source.add_argument(
        "--surge", action="append", metavar="FROM:TO:FACTOR", help="poisson: more requests for a while"
    )
    source.add_argument("--cv", type=float, default=3.0, help="coefficient of variation of gamma arrivals")
    source.add_argument("--prompt-tokens", type=int, default=512)
    source.add_argument("--output-tokens", type=int, default=100)
    source.add_argument("--random-lengths", action="store_true", help="draw outputs shaped like open chat")
    source.add_argument("--duration", type=float, default=600.0, help="seconds of virtual time")
    source.add_argument("--seed", type=int, default=0)
    plant = parser.add_argument_group("upstream")
    plant.add_argument("--plant", choices=("batch", "engine"), default="batch")
    plant.add_argument("--knee-at", type=int, help="batch: above this size everything gets 12 %% slower an item")
    plant.add_argument("--slots", type=int, default=1, help="batch: upstreams")
    plant.add_argument("--kv-tokens", type=int, default=60_000, help="engine: tokens its cache holds")
    plant.add_argument("--prefill-us-per-token", type=float, default=88.0, help="engine")
    plant.add_argument("--max-num-seqs", type=int, default=256, help="engine")
    plant.add_argument("--slow", action="append", metavar="FROM:TO:FACTOR", help="slow down for a while")
    plant.add_argument("--fail", action="append", metavar="FROM:TO", help="answer with errors for a while")
    plant.add_argument("--freeze-metrics", action="append", metavar="FROM:TO", help="show ticks a stale load")
    control = parser.add_argument_group("control")
    control.add_argument(
        "--law",
        default="deadline,aimd,step",
        help=f"one or more of {', '.join(LAWS)}; append {_BARE} to a name to refuse and shed nothing under it",
    )
    control.add_argument("--slo-e2e-ms", "--slo", type=float, help="end-to-end target; 6000 when none is given")
    control.add_argument("--slo-ttft-ms", type=float)
    control.add_argument("--slo-tpot-ms", type=float)
    control.add_argument("--quantile", type=float, default=0.99)
    control.add_argument("--size", type=int, default=8, help="max_batch_size at the start")
    control.add_argument("--max-size", type=int, default=64, help="upper bound of max_batch_size")
    control.add_argument("--window-ms", type=float, default=0.0)
    control.add_argument("--no-admission", action="store_true", help="refuse and shed nothing")
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="figures, series and decisions")
    output.add_argument("--plot", metavar="FILE", help="a picture (needs the plots extra)")
    return parser
