"""Raw samples of the setpoints in force, so that a new target can be judged on what was already seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from controller.observation import Observation, Result

__all__ = ["GenerationSamples", "Sample"]

_FAILED: Final = Result.FAILED
_REFUSED: Final = Result.REFUSED
_SHED: Final = Result.SHED
_CANCELLED: Final = Result.CANCELLED
_TIMEOUT: Final = Result.TIMEOUT


@dataclass(slots=True, init=False)
class Sample:
    """One request that reached the upstream, in the terms of the slow loop. Times in seconds; nobody changes one."""

    done: float
    dispatched: float
    batch: int
    queue: float
    service: float
    e2e: float
    first: float | None
    """Dispatch to first token, the upstream's own part of ttft."""
    tpot: float | None
    ttft: float | None
    served: bool
    """False when the caller left before the end, so that the latencies are lower bounds."""
    timeout: bool
    tokens: int
    """Output tokens; 0 when unknown."""
    klass: str

    def __init__(self, obs: Observation, dispatched: float) -> None:
        """Reduce an observation of a request that was sent at `dispatched`."""
        arrival, done, result = obs.arrival, obs.done, obs.result
        self.done = done
        self.dispatched = dispatched
        self.batch = obs.batch
        self.queue = dispatched - arrival
        self.service = done - dispatched
        self.e2e = done - arrival
        if obs.streamed and (first_byte := obs.first_byte) is not None:
            self.first = first_byte - dispatched
            self.ttft = first_byte - arrival
            self.tpot = obs.tpot_s
        else:
            self.first = self.ttft = self.tpot = None
        self.served = result is not _CANCELLED
        self.timeout = result is _TIMEOUT
        self.tokens = obs.output_tokens
        self.klass = obs.klass

    @staticmethod
    def of(obs: Observation) -> Sample | None:
        """Reduce an observation; None when it says nothing about the upstream's latency."""
        dispatched, result = obs.dispatched, obs.result
        if dispatched is None or result is _FAILED or result is _REFUSED or result is _SHED:
            return None
        return Sample(obs, dispatched)


class GenerationSamples:
    """The samples dispatched under the current generation of setpoints, and those of the one before.

    A sample of any other generation is refused: blaming old samples on new settings is what makes a controller
    chase its own tail.
    """

    def __init__(self, generation: int, now: float, size: int = 512) -> None:
        self.generation = generation
        self.since = now
        self.last_done: float | None = None
        """When anything came back last, of whatever generation."""
        self.total = 0
        """Samples of this generation so far, those that fell out of the ring included."""
        self._current: deque[Sample] = deque(maxlen=size)
        self._previous: deque[Sample] = deque(maxlen=size)
        self._size = size

    @property
    def current(self) -> Sequence[Sample]:
        """The samples of this generation, oldest first."""
        return self._current

    @property
    def longest_s(self) -> float | None:
        """The longest service time of this generation and the one before; None before any."""
        known = [sample.service for kept in (self._previous, self._current) for sample in kept if not sample.timeout]
        return max(known, default=None)

    @property
    def mean_service_s(self) -> float:
        """The mean service time of this generation and the one before, in seconds; 0 before any."""
        known = [sample.service for kept in (self._previous, self._current) for sample in kept]
        return sum(known) / len(known) if known else 0.0

    def add(self, sample: Sample, generation: int) -> bool:
        """Keep `sample` if it was dispatched under the current generation; says whether it was."""
        self.last_done = sample.done
        if generation != self.generation:
            return False
        self._current.append(sample)
        self.total += 1
        return True

    def advance(self, generation: int, now: float) -> None:
        """Begin a new generation."""
        self._previous = self._current
        self._current = deque(maxlen=self._size)
        self.generation = generation
        self.since = now
        self.total = 0

    def recent(self, at_least: int) -> Sequence[Sample]:
        """Return this generation's samples, and the previous one's too while there are fewer than `at_least`."""
        if len(self._current) >= at_least:
            return self._current
        return [*self._previous, *self._current]
