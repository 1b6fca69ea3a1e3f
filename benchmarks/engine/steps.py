"""What a decode step of the demo model takes on this processor, by rows and threads, with and without its program."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from backend.engine.runner import ModelRunner
from backend.engine.step import StepInput
from backend.models.config import ModelConfig
from backend.weights.loader import load_model
from backend.weights.locate import locate_model

__all__ = ["decode_steps"]

ROWS, CONTEXT, BLOCK = (1, 8, 32), 350, 16
ROUNDS = 15


def decode_steps(dtype: str) -> None:
    """Print the medians of steps that take turns, and how fast weights and cache were read for them."""
    loaded = load_model(locate_model("demo"), dtype=dtype)
    blocks = max(ROWS) * -(-CONTEXT // BLOCK)
    plain, programmed = (ModelRunner(loaded, blocks, BLOCK, reserve=True) for _ in range(2))
    config, size = loaded.config, loaded.model.dtype.itemsize
    weights = _matrix_elements(config) * size
    cache = 2 * config.num_layers * config.num_kv_heads * config.head_dim * CONTEXT * size
    print("decode steps of      threads   rows   plain: wall ms  CPU ms   program: wall ms  CPU ms   GB/s")
    for threads in sorted({1, os.cpu_count() or 1}):
        torch.set_num_threads(threads)
        programmed.warm_up(max(ROWS))
        for rows in ROWS:
            step = _step(rows, config.vocab_size)
            times = _in_turns([partial(runner.execute, step) for runner in (plain, programmed)])
            (plain_wall, plain_cpu), (wall, cpu) = times
            rate = (weights + rows * cache) / wall / 1e9
            print(
                f"SmolLM2-135M {dtype:9} {threads:4d} {rows:6d}   {plain_wall * 1e3:14.1f} {plain_cpu * 1e3:7.1f}"
                f"   {wall * 1e3:16.1f} {cpu * 1e3:7.1f} {rate:6.1f}",
                flush=True,
            )


def _matrix_elements(config: ModelConfig) -> int:
    """Elements of all weights that a decode step multiplies by."""
    heads = config.num_heads * config.head_dim
    attention = (2 * heads + 2 * config.num_kv_heads * config.head_dim) * config.hidden_size
    feed_forward = 3 * config.intermediate_size * config.hidden_size
    return config.num_layers * (attention + feed_forward) + config.vocab_size * config.hidden_size


def _step(rows: int, vocab_size: int) -> StepInput:
    """`rows` sequences of CONTEXT tokens, in blocks that lie anywhere, at their last token."""
    picker = random.Random(rows)
    each = -(-CONTEXT // BLOCK)
    free = picker.sample(range(rows * each), rows * each)
    tables = [[free.pop() for _ in range(each)] for _ in range(rows)]
    last = CONTEXT - 1
    return StepInput(
        token_ids=[picker.randrange(vocab_size) for _ in range(rows)],
        positions=[last] * rows,
        slot_mapping=[table[-1] * BLOCK + last % BLOCK for table in tables],
        query_lens=[1] * rows,
        context_lens=[CONTEXT] * rows,
        block_tables=tables,
        sample_rows=list(range(rows)),
    )


def _in_turns(ways: list[Callable[[], torch.Tensor]]) -> list[tuple[float, float]]:
    """Medians of wall and CPU seconds of each."""
    times: list[list[tuple[float, float]]] = [[] for _ in ways]
    for _ in range(ROUNDS + 2):
        for way, taken in zip(ways, times, strict=True):
            wall, cpu = time.perf_counter(), time.process_time()
            way()
            taken.append((time.perf_counter() - wall, time.process_time() - cpu))
    return [
        (statistics.median(wall for wall, _ in taken[2:]), statistics.median(cpu for _, cpu in taken[2:]))
        for taken in times
    ]
