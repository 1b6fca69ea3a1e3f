"""vLLM on the CPU as a contender (see workload.serve). Runs in vLLM's own environment."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

from benchmarks.engine.workload import Item, serve

# The engine in this process, so that its CPU time is this process's.
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def load(path: Path, dtype: str, *, eager: bool) -> Any:
    """The engine, compiled unless `eager`."""
    vllm: Any = importlib.import_module("vllm")  # after the environment is set, and only there is it installed
    arguments = vllm.EngineArgs(
        model=str(path), dtype=dtype, max_model_len=1024, max_num_seqs=64, enforce_eager=eager, disable_log_stats=True
    )
    return vllm.LLMEngine.from_engine_args(arguments)


def run(engine: Any, items: list[Item], serial: int) -> int:
    """Serve each item from when it arrives; returns the output tokens."""
    vllm: Any = importlib.import_module("vllm")
    due = deque(enumerate(items))
    start, tokens = time.monotonic(), 0
    while due or engine.has_unfinished_requests():
        while due and time.monotonic() - start >= due[0][1].at:
            number, item = due.popleft()
            params = vllm.SamplingParams(temperature=0.0, max_tokens=item.output, ignore_eos=True)
            engine.add_request(f"{serial}-{number}", {"prompt_token_ids": item.prompt}, params)
        if engine.has_unfinished_requests():
            finished = [output for output in engine.step() if output.finished]
            tokens += sum(len(output.outputs[0].token_ids) for output in finished)
        else:
            time.sleep(max(0.0, start + due[0][1].at - time.monotonic()))
    return tokens


def main() -> None:
    """Load the model, then serve orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--eager", action="store_true")
    given = parser.parse_args()
    os.environ.update(_ENVIRONMENT)
    engine = load(given.model, given.dtype, eager=given.eager)
    orders = iter(range(1 << 30))
    serve(lambda items, how: run(engine, items, next(orders)))


if __name__ == "__main__":
    main()
