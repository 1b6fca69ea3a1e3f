"""The counters behind EngineStats."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.engine.histogram import ITERATION_BOUNDS, QUEUE_BOUNDS, Histogram
from backend.engine.scheduler import Scheduler
from backend.engine.stats import EngineStats

__all__ = ["Account"]


@dataclass(slots=True)
class Account:
    """What happened since the engine started; see EngineStats for the meanings."""

    received: int = 0
    steps: int = 0
    running_sum: int = 0
    step_seconds: float = 0.0
    last_step_s: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    stalls: int = 0
    failures: int = 0
    """Steps that failed since the last one that did not."""
    stuck: bool = False
    """Whether work waited and nothing could be scheduled, and no step has succeeded since."""

    queue: Histogram = field(default_factory=lambda: Histogram(QUEUE_BOUNDS))
    iterations: Histogram = field(default_factory=lambda: Histogram(ITERATION_BOUNDS))

    def step(self, rows: int, tokens: int, seconds: float) -> None:
        """Take note of a step that succeeded."""
        self.failures = 0
        self.stuck = False
        self.steps += 1
        self.iterations.observe(tokens)
        self.running_sum += rows
        self.last_step_s = seconds
        self.step_seconds += seconds

    def stats(self, scheduler: Scheduler, waiting: int) -> EngineStats:
        """Return the counters together with the gauges of `scheduler` and its pool, and how many are `waiting`."""
        pool = scheduler.pool
        return EngineStats(
            running=scheduler.num_running,
            waiting=waiting,
            free_blocks=pool.num_free,
            cached_blocks=pool.num_cached,
            owned_blocks=pool.num_owned,
            total_blocks=pool.num_blocks,
            steps=self.steps,
            step_seconds=self.step_seconds,
            last_step_s=self.last_step_s,
            running_sum=self.running_sum,
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            prompt_tokens=self.prompt_tokens,
            generation_tokens=self.generation_tokens,
            requests_received=self.received,
            stalls=self.stalls,
            queue_s=self.queue.distribution(),
            iteration_tokens=self.iterations.distribution(),
            healthy=not self.stuck and self.failures < 2,
        )
