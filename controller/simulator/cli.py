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

from controller.loop import PoolController
from controller.replay import JournalError, replay
from controller.simulator import report
from controller.simulator.arrivals import (
    Request,
    chat_lengths,
    gamma_arrivals,
    mmpp_arrivals,
    poisson_arrivals,
    read_own_log,
    read_trace,
    requests_at,
    speed_up,
)
from controller.simulator.engine import EnginePlant
from controller.simulator.options import BARE, Span, parser
from controller.simulator.plants import BatchPlant, Faults
from controller.simulator.record import Record
from controller.simulator.run import LawSpec, play, play_engine
from controller.slo import SLO

__all__ = ["main"]

_SHOWN = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run simulations as told by the command line; returns the exit code."""
    command = parser()
    options = command.parse_args(argv)
    if options.size > options.max_size:
        command.error(f"argument --size: must be at most --max-size, {options.max_size}, but it is {options.size}")
    try:
        return _run(options)
    except (OSError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2


def _check_files(options: argparse.Namespace) -> None:
    """Refuse at once what a day of simulation would end at. Raises ValueError."""
    for flag in ("trace", "from_log", "replay"):
        path = getattr(options, flag)
        if path is not None and not path.is_file():
            raise ValueError(f"--{flag.replace('_', '-')}: there is no file {path}")
    for flag in ("json", "plot"):
        path = getattr(options, flag)
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError(f"--{flag}: {path} cannot be written: it is a folder, or in none that exists")


def _run(options: argparse.Namespace) -> int:
    _check_files(options)
    if options.replay:
        return _replay(options.replay)
    slo = SLO(
        e2e_s=_seconds(options.slo_e2e_ms),
        ttft_s=_seconds(options.slo_ttft_ms),
        tpot_s=_seconds(options.slo_tpot_ms),
        quantile=options.quantile,
    )
    if not any(True for _ in slo.targets()):
        slo = SLO(e2e_s=6.0, quantile=options.quantile)
    requests = _requests(options)
    if not requests:
        raise ValueError(f"no request comes within {options.duration:g} s; raise --duration or --rate")
    runs: dict[str, Record] = {}
    decisions: dict[str, list[dict[str, Any]]] = {}
    for name in options.law:
        if sys.stderr.isatty():
            print(f"simulating {len(requests)} requests under {name} ...", file=sys.stderr)
        runs[name], controller = _simulate(name, requests, slo, options)
        decisions[name] = [entry.as_dict() for entry in controller.decisions.since(0)]
    print(report.table(runs))
    if options.json:
        options.json.write_text(report.as_json(runs, decisions) + "\n", encoding="utf-8")
    if options.plot:
        try:
            report.plot(runs, options.plot)
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
        name.removesuffix(BARE),
        options={"admission": not (options.no_admission or name.endswith(BARE))},
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
    spans: list[Span] = options.slow or []
    failing = tuple([(span.start, span.end) for span in options.fail or ()])
    frozen = tuple([(span.start, span.end) for span in options.freeze_metrics or ()])

    def slow(now: float) -> float:
        factor = 1.0
        for start, end, times in spans:
            if start <= now < end:
                factor *= times
        return factor

    return Faults(slow=slow, failing=failing, frozen_metrics=frozen)


def _requests(options: argparse.Namespace) -> list[Request]:
    if options.trace or options.from_log:
        day = read_own_log(options.from_log) if options.from_log else read_trace(options.trace)
        requests = speed_up(day, options.speed)
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
        surges: list[Span] = options.surge or []
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
