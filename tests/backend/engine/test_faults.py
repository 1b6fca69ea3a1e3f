"""Steps that fail, rows that give nothing, work that cannot move."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from backend.engine.core import EngineFault
from backend.engine.request import Delta, FinishReason
from tests.backend.engine.fake import VOCAB, FakeRunner, compiled, fake_core, fake_options, greedy
from tests.backend.engine.results import GREEDY, Results, request, run


def test_a_failed_step_ends_its_requests_with_an_error_and_the_engine_goes_on() -> None:
    core = fake_core(fake_options(max_num_seqs=1))
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    core.add(request("a", [1, 2], n=1))
    core.add(request("b", [3, 4]))
    results = Results()
    results.add(core.step())
    runner.fail_next = RuntimeError("out of memory\nwith a long tail")
    results.add(core.step())
    run(core, results)
    assert results["a", 0].finish is FinishReason.ERROR
    assert results["a", 0].error == "the step that computed this request failed: RuntimeError: out of memory"
    assert results["b", 0].token_ids == greedy([3, 4], 6)
    assert core.stats().healthy


def test_a_failed_step_leaves_nothing_in_the_prefix_cache() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    core.add(request("a", list(range(9))))
    run(core)
    assert core.stats().cached_blocks > 0
    core.add(request("b", [50] * 9))
    runner.fail_next = RuntimeError("lost")
    core.step()
    assert core.stats().cached_blocks == 0


def test_steps_that_fail_again_and_again_are_an_engine_fault() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for i in range(3):
        core.add(request(f"r{i}", [1]))
        runner.fail_next = RuntimeError("broken")
        if i < 2:
            core.step()
    assert not core.stats().healthy
    with pytest.raises(EngineFault, match="3 steps in a row"):
        core.step()
    assert [delta.finish_reason for delta in core.fail_all("gone")] == [FinishReason.ERROR]


def test_a_row_without_valid_probabilities_ends_alone() -> None:
    core = fake_core()
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for name in "ab":
        core.add(request(name, [1, ord(name) % 60]))
    results = Results()
    results.add(core.step())
    runner.nan_next = True
    run(core, results)
    assert results["a", 0].finish is FinishReason.ERROR
    assert "probabilities" in str(results["a", 0].error)
    assert results["b", 0].finish is FinishReason.LENGTH


@pytest.mark.parametrize("overlap", [False, True])
def test_nothing_that_a_row_without_valid_probabilities_has_computed_is_found_again(overlap: bool) -> None:
    core = fake_core(fake_options(prefill_chunk=4), overlap=overlap)
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    prompt = list(range(11))
    core.add(request("before", prompt))
    results = run(core, overlap=overlap)
    core.add(request("bad", prompt, replace(GREEDY, max_tokens=9), n=2))
    results.add(core.step())
    runner.nan_next = True
    run(core, results, overlap=overlap)
    assert FinishReason.ERROR in {results["bad", index].finish for index in range(2)}
    computed = runner.tokens_computed
    core.add(request("after", prompt))
    run(core, results, overlap=overlap)
    assert results.usage["after"].cached_tokens == 0
    assert runner.tokens_computed >= computed + len(prompt)
    assert results["after", 0].token_ids == results["before", 0].token_ids == greedy(prompt, 6)


class Moody:
    """A grammar that lets everything pass until its third token, and then fails in one of the ways there are."""

    def __init__(self, mood: str) -> None:
        self.mood = mood
        self.left = 3

    def allowed(self) -> torch.Tensor | None:
        if self.left == 0 and self.mood == "raises":
            raise RuntimeError("a fault of the library")
        return torch.ones(VOCAB - 1 if self.left == 0 and self.mood == "misshapen" else VOCAB, dtype=torch.bool)

    def accept(self, token: int) -> bool:
        self.left -= 1
        if self.left < 0 and self.mood == "raises on a token":
            raise RuntimeError("a fault of the library")
        return self.left >= 0 or self.mood != "gives up"


@pytest.mark.parametrize("mood", ["raises", "misshapen", "raises on a token", "gives up"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("overlap", [False, True])
def test_a_grammar_that_fails_on_the_way_fails_its_own_request_and_blames_its_field(
    mood: str, temperature: float, overlap: bool
) -> None:
    core = fake_core(grammars=compiled(lambda: Moody(mood)), overlap=overlap)
    core.add(request("free", [1, 2]))
    params = replace(GREEDY, temperature=temperature, seed=1, logprobs=1)
    core.add(request("held", [1, 2], params, grammar="g", grammar_param="guided_regex", n=2))
    core.add(request("after", [3, 4]))
    deltas: dict[str, list[Delta]] = {}
    results = Results()
    while core.has_work:
        for delta in core.step():
            deltas.setdefault(delta.request_id, []).append(delta)
            results.add([delta])
        core.check_integrity()
    for name, prompt in (("free", [1, 2]), ("after", [3, 4])):
        assert results[name, 0].token_ids == greedy(prompt, 6)
    ends = [delta for delta in deltas["held"] if delta.finish_reason is not None]
    assert [delta.finish_reason for delta in ends] == [FinishReason.ERROR] * 2
    assert {delta.error_param for delta in ends} == {"guided_regex"}
    assert all("the grammar" in str(delta.error) for delta in ends)
    assert core.stats().owned_blocks == 0
    assert core.stats().healthy


def test_the_watchdog_fails_the_head_when_work_waits_and_nothing_can_be_scheduled() -> None:
    """vllm#45414: nothing running, work waiting, health 200."""
    core = fake_core(fake_options(num_blocks=4))
    leaked = [core.scheduler.pool.allocate() for _ in range(3)]
    core.add(request("big", [1] * 9))
    core.add(request("small", [1, 2], replace(GREEDY, max_tokens=2)))
    results = Results()
    results.add(core.step())
    assert results["big", 0].finish is FinishReason.ERROR
    assert "could not schedule" in str(results["big", 0].error)
    assert not core.stats().healthy
    assert core.stats().stalls == 1
    results.add(core.step())
    assert core.stats().healthy
    core.scheduler.pool.release(leaked)
    run(core, results)
    assert results["small", 0].token_ids == greedy([1, 2], 2)


def test_a_step_that_fails_while_it_saves_loses_what_it_would_have_saved_and_nothing_else() -> None:
    core = fake_core(fake_options(num_blocks=6, block_size=2, offload_blocks=50))
    runner = core.runner
    assert isinstance(runner, FakeRunner)
    for i in range(3):
        core.add(request(f"r{i}", [i] * 3, replace(GREEDY, max_tokens=7)))
    results = Results()
    while core.stats().preemptions == 0:
        runner.fail_next = None
        results.add(core.step())
        runner.fail_next = RuntimeError("a fault")  # in whichever step is the one that preempts
    runner.fail_next = None
    run(core, results)
    for i in range(3):
        if results[f"r{i}", 0].finish is not FinishReason.ERROR:
            assert results[f"r{i}", 0].token_ids == greedy([i] * 3, 7)
