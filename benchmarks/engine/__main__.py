"""The engine beside its peers, and what its own Python costs.

    python -m benchmarks.engine [--quick] [--only PARTS] [--dtype float32,bfloat16] [--repeats N] [--json FILE]
    python -m benchmarks.engine --install        installs vLLM for the CPU into the cache (3.5 GB with torch)

* overhead: CPU time of scheduler and block pool for a decode step of 16 to 1,024 sequences;
* steps: what a decode step of the demo model takes in one thread and in all, alone and from its program, and how fast
  that reads weights and cache; no bar;
* static: a long-tailed mix that arrives faster than it is served, through the same engine, continuously and in static
  batches (the next batch starts, with whoever is there, when the longest of the one before is done), once with the
  rows that are done as padding, as static batching has them, and once as if they cost nothing;
* peers: SmolLM2-135M, 32 requests of 64 to 512 prompt and 16 to 256 output tokens that arrive over time, greedy,
  the end-of-text token ignored, one thread: output tokens per CPU second of the process, beside transformers'
  continuous batching and vLLM. The same prompts, weights and dtype for all; runs take turns, so that what else the
  machine does meets all of them. Ours runs in the environment that the worker gives its engine (huge pages).

`--quick` takes less than 45 s: it does the overhead, tries static batching on a handful of requests without holding
it against a bar, and the peers in bf16 with four requests of a quarter of the size. vLLM is left out (it takes longer
to start than all of that may), and so are float32 and the steps.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence

from backend.engine.client import ENGINE_ENVIRONMENT
from backend.weights.locate import locate_model
from benchmarks.bars import Bar, report
from benchmarks.engine.checkpoint import demo_directory
from benchmarks.engine.contender import Contender, ContenderFailed
from benchmarks.engine.overhead import overhead
from benchmarks.engine.peers import install, vllm_python
from benchmarks.engine.steps import decode_steps
from benchmarks.engine.workload import Figures, Item, afresh, chat_mix, long_tail, shorter

PARTS = ("overhead", "steps", "static", "peers")
DTYPES = ("float32", "bfloat16")
TARGETS = {"transformers": 2.5, "vllm": 1.2}
STATIC_TARGET = 2.0
MIX, QUICK_MIX = (96, 256, 16), (6, 32, 4)
"""For the comparison with static batching: requests, longest output, and how many sequences run at once."""
WAYS = {"continuous": "continuous", "static": "padded:{}", "static without padding": "static:{}"}
"""Name -> what is ordered, see workload.serve."""
ARRIVALS_PER_S = 32.0
BOOT_S = 600.0


def static_against_continuous(dtype: str, count: int, longest: int, seats: int) -> list[Bar]:
    """The long-tailed mix, in turns, through one engine."""
    items = long_tail(count, longest, count / ARRIVALS_PER_S)
    arguments = ["--model", str(locate_model("demo")), "--dtype", dtype, "--max-num-seqs", str(seats)]
    runs: dict[str, Figures] = {}
    with Contender("trimtab", "ours", arguments, environment=ENGINE_ENVIRONMENT) as engine:
        engine.ready(BOOT_S)
        engine.run(_warm_up(items))
        for number, (name, how) in enumerate(WAYS.items()):
            runs[name] = engine.run(afresh(items, number), how.format(seats))
            print(f"long tail  {dtype:9} {name:24} {_describe(runs[name])}", flush=True)
    return [
        Bar.above(
            f"continuous / {name} batching, long tail, {dtype}",
            runs["continuous"].per_cpu_s / runs[name].per_cpu_s,
            STATIC_TARGET,
        )
        for name in runs
        if name != "continuous"
    ]


def _warm_up(items: Sequence[Item]) -> list[Item]:
    """Two short requests, not to be served from a prefix cache later."""
    return [Item(0.0, item.prompt[::-1], 8) for item in items[:2]]


def _describe(figures: Figures) -> str:
    return f"{figures.output_tokens:6d} tokens  {figures.cpu_s:7.1f} CPU s  {figures.per_cpu_s:7.1f} tokens / CPU s"


def _contenders(dtype: str, quick: bool) -> list[Contender]:
    path = str(demo_directory())
    arguments = ["--model", path, "--dtype", dtype]
    found = [
        Contender("trimtab", "ours", arguments, environment=ENGINE_ENVIRONMENT),
        Contender("transformers", "with_transformers", arguments),
    ]
    python = vllm_python()
    if quick:
        print("left out of --quick: vllm, which takes a minute to start; float32; steps; a bar for static batching")
    elif python is None:
        print("vllm: not installed, left out (python -m benchmarks.engine --install)", file=sys.stderr)
    else:
        found.append(Contender("vllm", "with_vllm", arguments, python=python))
    return found


def beside_peers(dtype: str, items: Sequence[Item], repeats: int, *, quick: bool = False) -> list[Bar]:
    """Every contender serves the same requests, in turns, `repeats` times after a warm-up of two requests."""
    runs: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        running = []
        for contender in [stack.enter_context(contender) for contender in _contenders(dtype, quick)]:
            try:
                contender.ready(BOOT_S)
                contender.run(_warm_up(items))
                running.append(contender)
            except ContenderFailed as error:
                print(error, file=sys.stderr)
        for number in range(repeats):
            for contender in list(running):
                try:
                    figures = contender.run(afresh(items, number))
                except ContenderFailed as error:
                    print(error, file=sys.stderr)
                    running.remove(contender)
                    continue
                runs.setdefault(contender.name, []).append(figures)
                print(f"chat mix   {dtype:9} {contender.name:24} {_describe(figures)}", flush=True)
    middle = {name: statistics.median(figure.per_cpu_s for figure in figures) for name, figures in runs.items()}
    return [
        Bar.above(
            f"output tokens per CPU second, trimtab / {peer}, {dtype}", middle["trimtab"] / middle[peer], target
        )
        for peer, target in TARGETS.items()
        if peer in middle and "trimtab" in middle
    ]


def _names(text: str, known: tuple[str, ...]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def main() -> int:
    """Parse the options, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="install the peers that are missing, then stop")
    parser.add_argument("--quick", action="store_true", help="few and short requests, under 45 s")
    parser.add_argument("--only", type=lambda text: _names(text, PARTS), default=list(PARTS), metavar="PARTS")
    parser.add_argument("--dtype", type=lambda text: _names(text, DTYPES), default=list(DTYPES), metavar="TYPES")
    parser.add_argument("--requests", type=int, help="of the chat mix (32; 4 short ones with --quick)")
    parser.add_argument("--repeats", type=int, help="of each contender's run (3; 2 with --quick)")
    parser.add_argument("--json", metavar="FILE", help="write the bars there as JSON")
    options = parser.parse_args()
    if options.install:
        install()
        return 0
    quick: bool = options.quick
    requests, repeats = options.requests or (4 if quick else 32), options.repeats or (2 if quick else 3)
    dtypes = options.dtype[-1:] if quick else options.dtype
    bars: list[Bar] = []
    if "overhead" in options.only:
        bars += overhead(quick)
    if "steps" in options.only and not quick:
        for dtype in dtypes:
            decode_steps(dtype)
    if "static" in options.only:
        for dtype in dtypes:
            measured = static_against_continuous(dtype, *(QUICK_MIX if quick else MIX))
            bars += [] if quick else measured  # a handful of requests has no long tail
    if "peers" in options.only:
        items = chat_mix(requests, within_s=requests / 8)
        for dtype in dtypes:
            bars += beside_peers(dtype, shorter(items, 4) if quick else items, repeats, quick=quick)
    return report(bars, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
