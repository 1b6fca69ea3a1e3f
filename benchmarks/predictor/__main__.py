"""How well the output-length predictor does on public data, beside what one would use without it.

    python -m benchmarks.predictor [--data DIR] [--quick] [--json FILE]

DIR (or TRIMTAB_DATA) holds `alpaca_eval_lengths.jsonl.gz`, `mooncake_synthetic.csv.gz` and `azure2023_conv.csv.gz`.
What has no file is left out, and said; the costs are then measured by made-up prompts.
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
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, report
from benchmarks.parallel import Work, in_parallel
from benchmarks.predictor.alpaca import FILE, alpaca, read_alpaca, replay
from benchmarks.predictor.costs import PLAYS, cost, on_the_loop, swap
from benchmarks.predictor.made_up import made_up
from benchmarks.predictor.replaying import Inline, Timeline, settle
from benchmarks.predictor.traces import read_trace, trace
from controller.predictor import LengthPredictor
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Trainer

LEFT_OUT = """\
left out of --quick: seven of ten splits of AlpacaEval's prompts, prompts seen on another model, all unseen models but
one, most trainings on the Azure trace, and one of three plays of what the event loop notices"""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", default=os.environ.get("TRIMTAB_DATA"), help="folder with the data files")
    parser.add_argument("--quick", action="store_true", help="fewer splits, trainings and plays, under 45 s")
    parser.add_argument("--json", help="write the bars to this file")
    options = parser.parse_args(argv)
    quick: bool = options.quick
    started = time.monotonic()
    data = Path(options.data) if options.data else None
    works: list[Work] = [
        partial(work, data / file, quick)
        for file, work in PARTS.items()
        if data is not None and (data / file).exists()
    ]
    # Nothing in these depends on time that passes, so that they may share the machine.
    bars = in_parallel(works, min(2, os.cpu_count() or 1) if quick else 1)
    bars += _costs(data, quick)
    for file in PARTS:
        if data is None or not (data / file).exists():
            print(f"left out: {file.partition('.')[0]}; it needs {file} in --data DIR (or TRIMTAB_DATA)")
    if quick:
        print(LEFT_OUT)
    print(f"took {time.monotonic() - started:.0f} s\n")
    return report(bars, options.json)


def _alpaca(file: Path, quick: bool) -> list[Bar]:
    return alpaca(read_alpaca(file), 3 if quick else 10, repeats=not quick)


def _mooncake(file: Path, quick: bool) -> list[Bar]:
    result, against = trace("Mooncake synthetic", read_trace(file, "input_tokens", "output_tokens", "first_block_id"))
    return [
        *against,
        Bar.above("mooncake synthetic tau", result.tau, 0.62),
        Bar.below("mooncake synthetic MAE / constant", result.pin50, 0.42),
    ]


def _azure(file: Path, quick: bool) -> list[Bar]:
    # As in service, except that the quick run trains on the long trace only a few times.
    rhythm: dict[str, Any] = {"rows": 8_000, "every_s": 1_500.0} if quick else {}
    arrivals = read_trace(file, "context_tokens", "generated_tokens", None)
    result, against = trace("Azure 2023 conversation", arrivals, **rhythm)
    return [Bar.above("azure conversation tau", result.tau, 0.54), *against]


PARTS: dict[str, Callable[[Path, bool], list[Bar]]] = {
    FILE: _alpaca,
    "mooncake_synthetic.csv.gz": _mooncake,
    "azure2023_conv.csv.gz": _azure,
}
"""What is measured by each file."""


def _costs(data: Path | None, quick: bool) -> list[Bar]:
    """What it costs, by AlpacaEval's prompts, or by made-up ones where they are not there."""
    if data is not None and (data / FILE).exists():
        answers, whose = read_alpaca(data / FILE), "data's own"
    else:
        answers, whose = made_up(), "made-up"
    print("\nCost")
    clock = Timeline()
    jobs: list[Job] = []

    def keep(job: Job) -> Inline:
        jobs.append(job)
        return Inline(job)

    predictor = LengthPredictor(
        clock=clock,
        hour=lambda: 12.0,
        trainer=Trainer(FEATURES, now=0.0, launch=keep, rows=10**9, min_rows=len(answers), every_s=1e12),
    )
    replay(predictor, clock, answers)
    settle(predictor)
    bars = cost(answers, whose, list(predictor.state()))
    bars += on_the_loop(answers, 2 if quick else PLAYS)
    bars += swap(predictor, jobs[0])
    print()
    return bars


if __name__ == "__main__":
    sys.exit(main())
