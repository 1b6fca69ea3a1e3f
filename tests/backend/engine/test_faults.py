"""Steps that fail, rows that give nothing, work that cannot move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.engine.core import EngineFault
from backend.engine.request import FinishReason
from tests.backend.engine.fake import FakeRunner, fake_core, fake_options, greedy
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
