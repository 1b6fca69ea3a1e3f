"""transformers' continuous batching as a contender (see workload.serve)."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.engine.workload import Item, serve


def load(path: Path, dtype: str) -> Any:
    """The model, with attention by scaled_dot_product_attention."""
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    return model.eval()


def run(model: Any, items: list[Item], batch_tokens: int) -> int:
    """Serve each item from when it arrives; returns the output tokens."""
    config = ContinuousBatchingConfig(page_size=32, num_blocks=1024, max_batch_tokens=batch_tokens)
    make_generation: Any = GenerationConfig  # has no types
    generation = make_generation(do_sample=False, eos_token_id=-1, max_new_tokens=16)
    tokens = 0
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=config, warmup=False
    ) as manager:
        start = time.monotonic()
        for number, item in enumerate(items):
            time.sleep(max(0.0, start + item.at - time.monotonic()))
            manager.add_request(item.prompt, request_id=str(number), max_new_tokens=item.output, eos_token_id=-1)
        for _ in items:
            result = manager.get_result(timeout=600)
            if result is None or result.error:
                raise SystemExit(f"transformers failed: {getattr(result, 'error', 'no result')}")
            tokens += len(result.generated_tokens)
    return tokens


def main() -> None:
    """Load the model, then serve orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--batch-tokens", type=int, default=256)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    model = load(given.model, given.dtype)
    serve(lambda items, how: run(model, items, given.batch_tokens))


if __name__ == "__main__":
    main()
