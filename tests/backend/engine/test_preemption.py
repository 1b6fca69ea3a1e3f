"""Who loses its blocks, and that nothing else is lost."""

from __future__ import annotations

import pytest

from backend.engine.batch import Batch
from backend.engine.sequence import SequenceState
from policies.priority import Priority
from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import greedy


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("cache", [True, False])
def test_preempted_requests_end_with_the_tokens_of_an_undisturbed_run(block_size: int, cache: bool) -> None:
    driver = Driver(-(-24 // block_size), block_size, prefix_cache=cache)
    for i in range(4):
        driver.add(f"r{i}", prompt(4 + i, i), 12)
    driver.run()
    assert driver.scheduler.preemptions > 0
    for i in range(4):
        assert driver.outputs[f"r{i}", 0] == greedy(prompt(4 + i, i), 12)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("at", range(1, 10))
def test_preemption_at_every_possible_step_and_block_offset(at: int, cache: bool) -> None:
    driver = Driver(32, 4, prefix_cache=cache, prefill_chunk=3)
    sequence = driver.add("a", prompt(7), 7)
    for _ in range(at):
        driver.step()
    if not sequence.state.over:
        driver.scheduler._preempt(sequence, Batch(driver.pool))
        driver.scheduler.check_integrity()
    driver.run()
    assert driver.outputs["a", 0] == greedy(prompt(7), 7)


def test_the_token_sampled_by_the_recomputation_is_the_next_token() -> None:
    """nano-vllm PR#217, vllm-gaudi PR#524: the token was dropped, or appended twice."""
    driver = Driver(32, 4, prefix_cache=False)
    sequence = driver.add("a", prompt(5), 8)
    for _ in range(4):
        driver.step()
    driver.scheduler._preempt(sequence, Batch(driver.pool))
    before = sequence.num_output_tokens
    driver.step()
    assert sequence.num_output_tokens == before + 1
    assert driver.runner.steps[-1].query_lens == [5 + 4], "prompt and output are caught up in one go"


def test_the_last_by_policy_is_preempted_first() -> None:
    driver = Driver(6, 2, policy=Priority())
    patient = driver.add("patient", prompt(3), 8, slack=100.0)
    urgent = driver.add("urgent", prompt(3, 9), 8)
    driver.run()
    assert patient.preemptions > 0
    assert urgent.preemptions == 0


def test_preempted_requests_resume_ahead_of_every_newcomer() -> None:
    """vllm#41951: queued by arrival, they lost to fresh ones and were computed again."""
    driver = Driver(6, 2, max_num_seqs=2, policy=Priority())
    driver.add("first", prompt(4), 7)
    second = driver.add("second", prompt(4, 9), 7, slack=100.0)
    for _ in range(4):
        driver.step()
    assert second.preemptions == 1
    driver.add("newcomer", prompt(1, 3), 7)
    driver.run()
    assert driver.order == ["first", "second", "newcomer"]
    assert driver.outputs["second", 0] == greedy(prompt(4, 9), 7)
    resumed = next(
        i for i, s in enumerate(driver.runner.steps) if i > 3 and 8 in s.context_lens and len(s.query_lens)
    )
    assert resumed > 3


def test_a_sequence_resumes_only_when_all_its_known_tokens_fit() -> None:
    driver = Driver(6, 2, max_num_seqs=4)
    driver.add("a", prompt(3), 8)
    second = driver.add("b", prompt(5, 9), 6)
    while second.preemptions == 0:
        driver.step()
    driver.step()
    assert second.state is SequenceState.WAITING
    assert driver.pool.available < -(-len(second.tokens) // 2)
    driver.run()
    assert driver.outputs["b", 0] == greedy(prompt(5, 9), 6)


def test_a_sequence_preempted_too_often_is_spared_while_another_victim_exists() -> None:
    driver = Driver(8, 2, max_preemptions=1)
    first = driver.add("a", prompt(3), 11)
    second = driver.add("b", prompt(3, 9), 11)
    driver.step()
    second.preemptions = 1
    driver.run()
    assert first.preemptions == 1
    assert second.preemptions == 1


def test_the_step_that_preempts_admits_nobody() -> None:
    driver = Driver(4, 2)
    driver.add("a", prompt(3), 5)
    driver.add("b", prompt(3, 5), 5)
    driver.step()
    driver.step()
    driver.add("c", [1], 1)
    driver.step()
    assert driver.scheduler.preemptions == 1
    assert driver.runner.steps[-1].query_lens == [1]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5])
def test_offloaded_sequences_are_put_back_instead_of_computed_again(block_size: int, cache: bool) -> None:
    computed = {}
    for offload in (0, 100):
        driver = Driver(-(-24 // block_size), block_size, prefix_cache=cache, offload_blocks=offload)
        for i in range(4):
            driver.add(f"r{i}", prompt(4 + i, i), 12)
        driver.run()
        assert driver.scheduler.preemptions > 0
        assert (driver.runner.saved_blocks > 0) == (offload > 0)
        for i in range(4):
            assert driver.outputs[f"r{i}", 0] == greedy(prompt(4 + i, i), 12)
        computed[offload] = driver.runner.tokens_computed
    assert computed[100] == sum(4 + i + 11 for i in range(4)), "each token is computed exactly once"
    if not cache:
        assert computed[0] > computed[100]


def test_the_offload_budget_is_kept_and_given_back_by_every_way_out() -> None:
    driver = Driver(6, 2, offload_blocks=3)
    first = driver.add("a", prompt(3), 8)
    second = driver.add("b", prompt(3, 9), 8)
    while second.saved is None:
        assert driver.step()
    assert second.saved.num_blocks <= 3
    driver.scheduler.remove(second, SequenceState.ABORTED)
    driver.scheduler.check_integrity()
    assert second.saved is None
    third = driver.add("c", prompt(1, 5), 10)
    driver.run()
    assert first.preemptions == 0
    assert driver.outputs["c", 0] == greedy(prompt(1, 5), 10)
    assert third.saved is None
