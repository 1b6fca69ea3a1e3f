"""Drives a Scheduler over the fake model, greedily: the engine's core without sampling and text."""

from __future__ import annotations

from backend.engine.blocks import BlockPool
from backend.engine.request import FinishReason, GenerationRequest, SamplingParams
from backend.engine.scheduler import Limits, Scheduler
from backend.engine.sequence import Sequence, SequenceState
from policies import Job, Policy
from policies.fcfs import FCFS
from tests.backend.engine.fake import FakeRunner

ROOT = b"0123456789abcdef"


def prompt(length: int, start: int = 1) -> list[int]:
    """Return `length` tokens; another `start` gives another text."""
    return [(start + 7 * i) % 60 for i in range(length)]


class Driver:
    """Adds prompts, steps until done, and keeps what each choice produced."""

    def __init__(
        self,
        num_blocks: int = 16,
        block_size: int = 4,
        *,
        policy: Policy | None = None,
        prefix_cache: bool = True,
        **limits: object,
    ) -> None:
        options: dict[str, object] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, **limits}
        self.pool = BlockPool(num_blocks, block_size, root=ROOT, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(self.pool, Limits(**options), policy or FCFS())  # type: ignore[arg-type]
        self.runner = FakeRunner(num_blocks, block_size, budget=options["max_num_batched_tokens"])  # type: ignore[arg-type]
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.order: list[str] = []
        """Request ids in the order of their first token."""
        self.now = 0.0

    def add(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 4,
        *,
        n: int = 1,
        slack: float = 0.0,
        salt: str = "",
        predicted: float | None = None,
    ) -> Sequence:
        request = GenerationRequest(
            name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0.0), n=n, cache_salt=salt
        )
        self.now += 0.001
        job = Job(
            name,
            self.now,
            class_slack=slack,
            prompt_tokens=len(prompt),
            predicted_tokens=predicted,
            max_tokens=max_tokens,
        )
        limit = min(len(prompt) + max_tokens, self.pool.num_blocks * self.pool.block_size)
        sequence = Sequence(request, job, list(prompt), max_len=limit, forks=n)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> bool:
        """Run one step; returns whether anything was scheduled."""
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if plan is None:
            return False
        for saved, blocks in plan.saves:
            saved.content = self.runner.save_blocks(blocks)
        for saved, first, blocks in plan.loads:
            assert all(self.pool.refs[block] == 1 and not self.pool.is_published(block) for block in blocks)
            self.runner.load_blocks(saved.content, first, blocks)
        if plan.copies:
            self.runner.copy_blocks(plan.copies)
        logits = self.runner.execute(plan.step)
        self.scheduler.commit(plan)
        for row, sequence in enumerate(plan.sampled):
            token = int(logits[row].argmax())
            for choice in self.scheduler.fork(sequence)[0] if sequence.forks > 1 else [sequence]:
                self._append(choice, token)
        self.scheduler.check_integrity()
        return True

    def run(self, limit: int = 10_000) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if not self.step():
                break
        assert not list(self.scheduler), "sequences are left that cannot be scheduled"
        assert self.pool.num_owned == 0

    def _append(self, sequence: Sequence, token: int) -> None:
        name = sequence.request.id
        if name not in self.order:
            self.order.append(name)
        sequence.tokens.append(token)
        finish = sequence.finish_after(token)
        if finish is not None:
            assert finish[0] is FinishReason.LENGTH
            self.outputs[name, sequence.index] = sequence.tokens[sequence.num_prompt_tokens :]
            self.scheduler.remove(sequence, SequenceState.COMPLETED)
