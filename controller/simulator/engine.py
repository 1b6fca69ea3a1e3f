"""A continuous-batching engine in virtual time: chunked prefill beside decode, a KV budget, preemption."""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from controller.simulator.arrivals import Request
from controller.simulator.plants import Faults
from controller.simulator.profile import PUBLISHED, Profile

__all__ = ["Engine", "EnginePlant", "Sequence"]

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class EnginePlant:
    """What an engine is made of.

    A step decodes one token of each running sequence and prefills up to `chunk_tokens` of one waiting prompt; it
    takes decode(c) + chunk * prefill_token_s + kv_tokens_in_use * context_token_s seconds.
    """

    profile: Profile = PUBLISHED
    prefill_token_s: float = 45e-3 / 512.0
    chunk_tokens: int = 512
    context_token_s: float = 0.0
    kv_tokens: int = 60_000
    """Tokens (prompt and generated) that fit in the KV cache."""
    max_num_seqs: int = 256
    noise: float = 0.05
    faults: Faults = field(default_factory=Faults)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine."""

    request: Request
    arrived: float
    """When the engine got it."""
    generated: float = 0.0
    first_token: float | None = None
    finished: float | None = None
    joined_step: float = 0.0
    target_step: float = 0.0
    order: int = 0
    running: bool = False

    @property
    def held_tokens(self) -> float:
        """Tokens to prefill when it starts (again)."""
        return self.request.prompt_tokens + self.generated


class Engine:
    """Runs sequences; `advance` moves its clock, `next_event` says when something will happen by itself."""

    def __init__(self, plant: EnginePlant, rng: random.Random) -> None:
        self.plant = plant
        self.now = 0.0
        self.preemptions = 0
        self.steps = 0.0
        self.busy_s = 0.0
        self.kv_used = 0.0
        self.waiting: deque[Sequence] = deque()
        self.started: list[Sequence] = []
        """Those whose first token came since somebody looked."""
        self.finished: list[Sequence] = []
        self._rng = rng
        self._luck = 1.0
        self._running: list[Sequence] = []
        self._targets: list[tuple[float, int, Sequence]] = []
        self._prefilling: Sequence | None = None
        self._prefill_left = 0.0
        self._order = 0

    def submit(self, request: Request, now: float) -> Sequence:
        """Hand a request over at `now`, which must not lie before the engine's clock."""
        self.advance(now)
        sequence = Sequence(request, now)
        self.waiting.append(sequence)
        self._schedule()
        return sequence

    def next_event(self) -> float:
        """Return when a prefill ends, a sequence finishes or the cache is full; infinite when idle."""
        steps = self._steps_to_event()
        return math.inf if steps is None else self.now + steps * self._step_s()

    def advance(self, until: float) -> None:
        """Run until `until`; sequences that began or finished are appended to `started` and `finished`."""
        while True:
            steps = self._steps_to_event()
            if steps is None:
                self.now = max(self.now, until)
                return
            step_s = self._step_s()
            end = self.now + steps * step_s
            if end > until + _EPSILON:
                self._run((until - self.now) / step_s, until)
                return
            self._run(steps, end)
            self._settle()

    def _steps_to_event(self) -> float | None:
        candidates: list[float] = []
        while self._targets and not self._valid(self._targets[0]):
            heappop(self._targets)
        if self._targets:
            candidates.append(self._targets[0][0] - self.steps)
        growth = float(len(self._running))
        if self._prefilling is not None:
            candidates.append(self._prefill_left / self.plant.chunk_tokens)
        if growth and len(self._running) > 1:
            candidates.append((self.plant.kv_tokens - self.kv_used) / growth)
        return max(0.0, min(candidates)) if candidates else None

    def _valid(self, entry: tuple[float, int, Sequence]) -> bool:
        target, order, sequence = entry
        return sequence.running and sequence.order == order and sequence.target_step == target

    def _step_s(self) -> float:
        plant = self.plant
        seconds = self.kv_used * plant.context_token_s
        if self._running:
            seconds += plant.profile.decode_s(len(self._running))
        if self._prefilling is not None:
            seconds += plant.prefill_token_s * min(plant.chunk_tokens, max(1.0, self._prefill_left))
        return max(1e-6, seconds * self._luck * plant.faults.slow(self.now))

    def _run(self, steps: float, until: float) -> None:
        if steps > 0.0:
            self.steps += steps
            self.kv_used += steps * len(self._running)
            if self._prefilling is not None:
                self._prefill_left = max(0.0, self._prefill_left - steps * self.plant.chunk_tokens)
        self.busy_s += max(0.0, until - self.now)
        self.now = max(self.now, until)

    def _settle(self) -> None:
        """Do what is due at this moment."""
        self._luck = math.exp(self._rng.gauss(0.0, self.plant.noise))
        while self._targets and (not self._valid(self._targets[0]) or self._targets[0][0] <= self.steps + 1e-6):
            entry = heappop(self._targets)
            if self._valid(entry):
                self._finish(entry[2])
        if self._prefilling is not None and self._prefill_left <= 1e-6:
            self._join(self._prefilling)
        while self.kv_used >= self.plant.kv_tokens - 1e-6 and len(self._running) > 1:
            self._preempt()
        self._schedule()

    def _join(self, sequence: Sequence) -> None:
        self._prefilling = None
        if sequence.first_token is None:
            sequence.first_token = self.now
            self.started.append(sequence)
            sequence.generated = 1.0
            self.kv_used += 1.0
        sequence.joined_step = self.steps
        left = sequence.request.output_tokens - sequence.generated
        self._order += 1
        sequence.order = self._order
        sequence.running = True
        sequence.target_step = self.steps + max(0.0, left)
        self._running.append(sequence)
        if left <= 1e-6:
            self._finish(sequence)
        else:
            heappush(self._targets, (sequence.target_step, sequence.order, sequence))

    def _finish(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.finished = self.now
        self.finished.append(sequence)

    def _preempt(self) -> None:
        newest = self._running[-1]
        self._leave(newest)
        self.preemptions += 1
        self.waiting.appendleft(newest)

    def _leave(self, sequence: Sequence) -> None:
        sequence.running = False
        sequence.generated += self.steps - sequence.joined_step
        self._running.remove(sequence)
        self.kv_used = max(0.0, self.kv_used - sequence.held_tokens)
        if not self._running and self._prefilling is None:
            self.kv_used = 0.0

    def _schedule(self) -> None:
        """Begin the next prefill, if a place and the memory for it are free."""
        if self._prefilling is not None or not self.waiting:
            return
        if len(self._running) >= self.plant.max_num_seqs:
            return
        sequence = self.waiting[0]
        alone = not self._running
        if not alone and self.kv_used + sequence.held_tokens + 1.0 > self.plant.kv_tokens:
            return
        self.waiting.popleft()
        self._prefilling = sequence
        self._prefill_left = sequence.held_tokens
        self.kv_used += sequence.held_tokens
