"""Trimtab's engine as one contender: a process that answers orders from standard input (see workload.serve)."""

from __future__ import annotations

import argparse
import time
from collections import deque
from pathlib import Path

from backend.engine.build import build_core
from backend.engine.core import EngineCore
from backend.engine.options import EngineOptions
from backend.engine.request import GenerationRequest, SamplingParams
from benchmarks.engine.workload import Item, serve


def _add(core: EngineCore, name: str, item: Item) -> None:
    params = SamplingParams(max_tokens=item.output, temperature=0.0, ignore_eos=True)
    core.add(GenerationRequest(name, item.prompt, params))


def continuous(core: EngineCore, items: list[Item]) -> int:
    """Serve each item from when it arrives; returns the output tokens."""
    due = deque(enumerate(items))
    start, tokens = time.monotonic(), 0
    while due or core.has_work:
        while due and time.monotonic() - start >= due[0][1].at:
            number, item = due.popleft()
            _add(core, str(number), item)
        if core.has_work:
            tokens += sum(len(delta.token_ids) for delta in core.step())
        else:
            time.sleep(max(0.0, start + due[0][1].at - time.monotonic()))
    return tokens


def static(core: EngineCore, items: list[Item], size: int, *, padded: bool) -> int:
    """Serve batches of up to `size`: whoever has arrived when the batch before is done; returns the output tokens.

    No batch waits to be full. Where `padded`, a row that is done is computed on until the longest of its batch is, as
    static batching does that has one tensor for the batch; otherwise it costs nothing any more, which is more than
    static batching can do without an engine under it that could as well let the next request in.
    """
    due = deque(enumerate(items))
    start, tokens = time.monotonic(), 0
    while due:
        time.sleep(max(0.0, start + due[0][1].at - time.monotonic()))
        batch: list[tuple[int, Item]] = []
        while due and len(batch) < size and time.monotonic() - start >= due[0][1].at:
            batch.append(due.popleft())
        tokens += sum(item.output for _, item in batch)
        longest = max(item.output for _, item in batch)
        for number, item in batch:
            _add(core, str(number), item._replace(output=longest) if padded else item)
        while core.has_work:
            core.step()
    return tokens


def main() -> None:
    """Load the model, then serve orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    given = parser.parse_args()
    options = EngineOptions(
        given.model, dtype=given.dtype, device="cpu", threads=1, memory_bytes=2 << 30, max_num_seqs=given.max_num_seqs
    )
    core, _ = build_core(options, lambda stage, done: None)

    def run(items: list[Item], how: str) -> int:
        kind, _, size = how.partition(":")
        if kind == "continuous":
            return continuous(core, items)
        return static(core, items, int(size), padded=kind == "padded")

    serve(run)


if __name__ == "__main__":
    main()
