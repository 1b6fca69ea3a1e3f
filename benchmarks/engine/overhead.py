"""Python's share of a decode step: scheduler and block pool, with no model behind them."""

from __future__ import annotations

import gc
import statistics
import time

from backend.engine.blocks import BlockPool
from backend.engine.request import GenerationRequest, SamplingParams
from backend.engine.scheduler import Limits, Scheduler
from backend.engine.sequence import Sequence
from benchmarks.bars import Bar
from policies import Job
from policies.fcfs import FCFS

__all__ = ["overhead"]

PROMPT, BLOCK = 512, 16
COUNTS = (16, 64, 256, 1024)


def measure(count: int, steps: int) -> list[float]:
    """CPU seconds of schedule + commit for each of `steps` decode steps of `count` sequences."""
    pool = BlockPool(count * ((PROMPT + steps) // BLOCK + 2), BLOCK, root=bytes(16))
    limits = Limits(max_num_seqs=count, max_num_batched_tokens=count * PROMPT, prefill_chunk=PROMPT)
    scheduler = Scheduler(pool, limits, FCFS())
    for number in range(count):
        # Lengths differ, so that every step some sequences, and about as many, fill a block.
        prompt = [(number * 7 + place) % 1000 for place in range(PROMPT - number % BLOCK)]
        request = GenerationRequest(str(number), prompt, SamplingParams(max_tokens=steps + 8))
        scheduler.add(Sequence(request, Job(str(number), float(number)), list(prompt), max_len=PROMPT + steps + 8))
    times = []
    for step in range(steps + 1):
        started = time.process_time()
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(plan)
        times.append(time.process_time() - started)
        for sequence in plan.sampled:
            sequence.tokens.append(step)
    return times[1:]


def overhead(quick: bool) -> list[Bar]:
    """Print CPU time per step and per sequence, and hold it against the bars."""
    gc.collect()
    gc.freeze()  # as the engine process does once the model is loaded
    print("running   ms/step (median)   us/sequence")
    medians: dict[int, float] = {}
    for count in COUNTS:
        medians[count] = statistics.median(measure(count, 32 if quick else 160))
        print(f"{count:7d}   {medians[count] * 1e3:16.3f}   {medians[count] / count * 1e6:11.2f}", flush=True)
    gc.unfreeze()
    each = {count: seconds / count for count, seconds in medians.items()}
    return [
        Bar.below("scheduler and block pool, 256 running: CPU ms a step", medians[256] * 1e3, 1.5),
        Bar.below("the same per sequence, 1,024 running / 16 running", each[1024] / each[16], 1.25),
    ]
