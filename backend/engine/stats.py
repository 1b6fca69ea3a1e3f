"""The engine's own account of itself, small enough to travel with every step."""

from __future__ import annotations

from dataclasses import dataclass

from backend.engine.histogram import NO_ITERATION, NO_QUEUE, Distribution

__all__ = ["EngineStats"]


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges as of the last step and counters since the start."""

    running: int = 0
    """Sequences that hold blocks (prefilling or decoding)."""
    waiting: int = 0
    """Sequences that wait: newcomers, those whose grammar is being compiled, and preempted ones."""
    free_blocks: int = 0
    """Blocks with nothing of use in them."""
    cached_blocks: int = 0
    """Blocks that nobody holds but that the prefix cache can still serve; as good as free for admission."""
    owned_blocks: int = 0
    """Blocks that at least one sequence holds. free + cached + owned = total."""
    total_blocks: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    """Time spent in steps, all together."""
    last_step_s: float = 0.0
    running_sum: int = 0
    """Sum over the steps of the sequences that took part."""
    preemptions: int = 0
    prefix_queries: int = 0
    """Prompt tokens that were looked up in the prefix cache."""
    prefix_hits: int = 0
    """Prompt tokens whose KV came from it."""
    prompt_tokens: int = 0
    """Prompt tokens of the requests admitted so far."""
    generation_tokens: int = 0
    requests_received: int = 0
    """Requests handed to the engine, refused ones included."""
    stalls: int = 0
    """How often work waited and nothing could be scheduled (each time the head of the line was failed)."""
    queue_s: Distribution = NO_QUEUE
    """Seconds from arrival to the first step, by request."""
    iteration_tokens: Distribution = NO_ITERATION
    """Tokens computed, by step."""
    healthy: bool = True

    @property
    def mean_running(self) -> float:
        """Mean number of sequences per step: the batch that the hardware really saw."""
        return self.running_sum / self.steps if self.steps else 0.0

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that sequences hold, 0 to 1."""
        return self.owned_blocks / self.total_blocks if self.total_blocks else 0.0
