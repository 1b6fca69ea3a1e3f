"""How an engine is started: one frozen value, checked before the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from backend.engine.errors import EngineError

__all__ = ["Admission", "EngineInfo", "EngineOptions"]

Admission = Literal["auto", "optimistic", "predicted", "guaranteed"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Everything the engine process needs to know before it answers its first request."""

    model: Path
    """A Hugging Face directory or a .gguf file."""
    dtype: str = "auto"
    """auto, float32, bfloat16 or float16."""
    device: str = "auto"
    """auto, cpu or cuda[:n]."""
    threads: int | None = None
    """CPU threads; None takes one less than the cores that this process may use, a container's limit included."""
    block_size: int = 16
    """Tokens per KV block."""
    num_blocks: int | None = None
    """Blocks in the KV cache; None sizes the cache from `memory_bytes` or from what is free."""
    memory_bytes: int | None = None
    """Memory for the KV cache when `num_blocks` is None."""
    max_num_seqs: int = 64
    """Sequences that run at once; a request with n choices takes n of them."""
    max_num_batched_tokens: int | None = None
    """Token budget of one step; None takes 2048 on a GPU and 256 on a CPU, see `resolve`."""
    prefill_chunk: int | None = None
    """Most prompt tokens that one sequence computes in one step; None takes 512 on a GPU and 128 on a CPU."""
    max_model_len: int | None = None
    """Longest sequence, prompt and output together; None takes the model's own limit."""
    max_waiting: int = 4096
    """Requests that may wait; one more is turned away as overloaded."""
    policy: str = "fcfs"
    """Who is admitted first, by the name it has in the policy registry."""
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    mix: bool = True
    """Whether prefill chunks and decodes may share a step."""
    prefix_cache: bool = True
    """Whether requests with equal beginnings (and equal salts) share KV blocks."""
    watermark: float = 0.01
    """Share of the blocks that admitting a newcomer must leave free, as room for running sequences to grow."""
    admission: Admission = "auto"
    """How much of its output a newcomer must find room for: none of it ("optimistic": preempt when that turns out
    wrong), what is predicted ("predicted"), or max_tokens ("guaranteed": never preempts). "auto" is "predicted"
    for policies that pack by predicted length and "optimistic" for all others."""
    offload_blocks: int = 0
    """How many blocks' worth of preempted sequences are kept in main memory, so that resuming them copies instead of
    computing; 0 keeps none."""
    max_preemptions: int = 4
    """A sequence that lost its blocks this often is spared as long as another victim exists."""

    def __post_init__(self) -> None:
        at_least_one = ("block_size", "max_num_seqs", "max_num_batched_tokens", "prefill_chunk", "max_waiting")
        for name in (*at_least_one, "num_blocks", "max_model_len", "memory_bytes", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EngineError(f"{name} must be at least 1, got {value}")
        if self.max_num_batched_tokens is not None and self.max_num_seqs > self.max_num_batched_tokens:
            raise EngineError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), or running sequences would miss steps"
            )
        if not 0 <= self.watermark < 1:
            raise EngineError(f"watermark must be in [0, 1), got {self.watermark}")
        if self.admission not in get_args(Admission):
            raise EngineError(f"admission must be one of {', '.join(get_args(Admission))}, got {self.admission!r}")
        for name in ("max_preemptions", "offload_blocks"):
            if getattr(self, name) < 0:
                raise EngineError(f"{name} must not be negative, got {getattr(self, name)}")

    def resolve(self, device: str) -> EngineOptions:
        """Return the options with nothing left open that depends on the kind of `device` ("cpu" or "cuda").

        A prefill chunk holds up every running stream for as long as it takes. On a GPU 512 tokens take
        milliseconds and fewer leave it idle; a CPU is as fast with 128 as with 512, and done four times sooner.
        """
        budget, chunk = (2048, 512) if device == "cuda" else (256, 128)
        return replace(
            self,
            max_num_batched_tokens=self.max_num_batched_tokens or max(budget, self.max_num_seqs),
            prefill_chunk=self.prefill_chunk or chunk,
        )


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine turned out to be once the model was loaded."""

    vocab_size: int
    max_model_len: int
    """Longest sequence that is served: the smallest of the model's limit, the option and the KV cache."""
    num_blocks: int
    block_size: int
    max_num_seqs: int
    eos_token_ids: frozenset[int] = frozenset()
    device: str = "cpu"
    gpu: str = ""
    """The UUID of the GPU it runs on, without a prefix; empty on a CPU."""
    dtype: str = "float32"
    policy: str = "fcfs"
    load_s: float = 0.0
    pid: int = 0
