"""What starts a step: a plan becomes work of the runner and, for the rows that sample, of the sampler."""

from __future__ import annotations

from typing import NamedTuple

import torch

from backend.engine.batch import Plan
from backend.engine.open_requests import OpenRequests
from backend.engine.sampler import Draw, Sampled, Sampler
from backend.engine.scheduler import Scheduler
from backend.engine.sequence import Sequence
from backend.engine.step import OffloadRunner, Runner

__all__ = ["Executor", "StepInFlight"]


class StepInFlight(NamedTuple):
    """A step that was started and not collected."""

    plan: Plan
    started: float
    """Seconds of the engine's clock."""
    sequences: list[Sequence]
    """[S] the sequence of each sampled row."""
    draw: Draw | None
    """Their tokens; None when the step only computed parts of prompts."""

    def result(self) -> list[tuple[Sequence, Sampled]]:
        """Wait for the step and return what each sampled row gave. Raises what the device raised."""
        return [] if self.draw is None else list(zip(self.sequences, self.draw.result(), strict=True))


class Executor:
    """Starts steps on a runner. Any call may raise what the runner or the sampler does."""

    def __init__(self, runner: Runner, scheduler: Scheduler, requests: OpenRequests) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._requests = requests
        self._sampler = Sampler(runner.vocab_size)

    def start(self, plan: Plan, started: float) -> StepInFlight:
        """Start what `plan` says, and commit it. An asynchronous runner is still at work when this returns."""
        if plan.saves or plan.loads:
            self._offload(plan)
        if plan.copies:
            self._runner.copy_blocks(plan.copies)
        logits = self._runner.execute(plan.step)
        self._scheduler.commit(plan)
        sequences = plan.sampled
        if not sequences:
            return StepInFlight(plan, started, sequences, None)
        if any(sequence.forks > 1 for sequence in sequences):
            sequences, logits = self._fork(sequences, logits)
        states = [self._requests.choice(sequence).sampling for sequence in sequences]
        return StepInFlight(plan, started, sequences, self._sampler.launch(logits, states))

    def _offload(self, plan: Plan) -> None:
        runner = self._runner
        assert isinstance(runner, OffloadRunner), "without such a runner there is no offload budget"
        for saved, blocks in plan.saves:
            saved.content = runner.save_blocks(blocks)
        for saved, first, blocks in plan.loads:
            runner.load_blocks(saved.content, first, blocks)

    def _fork(self, sequences: list[Sequence], logits: torch.Tensor) -> tuple[list[Sequence], torch.Tensor]:
        """Give every choice that has a seat and its prompt computed a sequence and a row of logits of its own."""
        rows: list[int] = []
        choices: list[Sequence] = []
        for row, sequence in enumerate(sequences):
            family = [sequence]
            if sequence.forks > 1:
                family, rest = self._scheduler.fork(sequence)
                self._requests.fork(family if rest is None else [*family, rest])
            choices.extend(family)
            rows.extend([row] * len(family))
        return choices, logits[rows]
