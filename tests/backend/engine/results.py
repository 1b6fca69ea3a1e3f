"""What a core gave for each choice, and the ways to get it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.engine.core import EngineCore
from backend.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams, TokenLogprob, Usage
from tests.backend.engine.fake import fake_core, fake_options, greedy

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)


@dataclass
class Result:
    """Everything that came for one choice."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: str | int | None = None
    error: str | None = None


class Results(defaultdict[tuple[str, int], Result]):
    """Collects deltas and checks what holds for all of them."""

    def __init__(self) -> None:
        super().__init__(Result)
        self.usage: dict[str, Usage] = {}

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            result = self[delta.request_id, delta.index]
            assert result.finish is None, "a delta after the finish"
            assert delta.request_id not in self.usage, "a delta after the usage"
            result.token_ids += delta.token_ids
            result.text += delta.text
            result.logprobs += delta.logprobs
            result.finish, result.stop, result.error = delta.finish_reason, delta.stop_reason, delta.error
            if delta.usage is not None:
                self.usage[delta.request_id] = delta.usage


def run(core: EngineCore, results: Results | None = None, *, overlap: bool = False) -> Results:
    results = Results() if results is None else results
    for _ in range(20_000):
        if not core.has_work:
            break
        core.launch()
        if overlap:
            results.add(core.drain())  # the step before
        core.collect()
        if not overlap or not core.has_work:
            results.add(core.drain())
        core.check_integrity()
    results.add(core.drain())
    assert not core.has_work
    stats = core.stats()
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    return results


def request(name: str, prompt: list[int], params: SamplingParams = GREEDY, **options: object) -> GenerationRequest:
    return GenerationRequest(name, prompt, params, **options)  # type: ignore[arg-type]


def solo(one: GenerationRequest) -> Results:
    """The request alone, in ample room, without a cache or chunks."""
    core = fake_core(fake_options(num_blocks=256, max_num_batched_tokens=512, prefix_cache=False))
    core.add(one)
    return run(core)


def first_with(token: int, after: int = 0) -> tuple[list[int], int]:
    """A prompt whose greedy output has `token` for the first time at some place >= `after`, and that place."""
    for start in range(400):
        prompt = [start % 60, start // 60]
        output = greedy(prompt, 30)
        if token in output and output.index(token) >= after:
            return prompt, output.index(token)
    raise AssertionError("no such prompt")
