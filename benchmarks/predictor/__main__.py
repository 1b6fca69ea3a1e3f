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
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, report
from benchmarks.predictor.alpaca import alpaca, read_alpaca, replay
from benchmarks.predictor.costs import cost, on_the_loop, swap
from benchmarks.predictor.replaying import Inline, Timeline, settle
from benchmarks.predictor.traces import read_trace, trace
from controller.predictor import LengthPredictor
from controller.predictor.predictor import FEATURES
from controller.predictor.trainer import Job, Trainer


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
