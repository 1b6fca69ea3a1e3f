"""What was computed once is found again, by those who may find it."""

from __future__ import annotations

import pytest

from backend.engine.sequence import SequenceState
from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import greedy


@pytest.mark.parametrize("length", [7, 8, 9, 12])
def test_an_equal_prompt_computes_only_what_the_cache_cannot_give(length: int) -> None:
    driver = Driver(32, 4)
    driver.add("a", prompt(length), 3)
    driver.run()
    before = driver.runner.tokens_computed
    again = driver.add("b", prompt(length), 3)
    driver.run()
    reused = (length - 1) // 4 * 4
    assert again.num_cached_tokens == reused == driver.scheduler.prefix_hits
    assert driver.runner.tokens_computed - before == length - reused + 2
    assert driver.outputs["b", 0] == driver.outputs["a", 0]


def test_a_full_hit_still_computes_the_last_token() -> None:
    """nano-vllm#144: a full hit left no query to compute."""
    driver = Driver(32, 4)
    driver.add("a", prompt(8), 5)
    driver.run()
    again = driver.add("b", prompt(8), 5)
    driver.run()
    assert again.num_cached_tokens == 4
    assert driver.outputs["b", 0] == greedy(prompt(8), 5)


def test_generated_tokens_are_reused_by_the_next_turn_of_a_conversation() -> None:
    driver = Driver(32, 4)
    driver.add("a", prompt(6), 7)
    driver.run()
    following = prompt(6) + driver.outputs["a", 0] + prompt(5, 3)
    second = driver.add("b", following, 3)
    driver.run()
    assert second.num_cached_tokens == 12
    assert driver.outputs["b", 0] == greedy(following, 3)


def test_requests_of_one_prefill_batch_do_not_match_blocks_that_are_only_allocated() -> None:
    """nano-vllm#209, #208."""
    driver = Driver(32, 4)
    driver.add("a", prompt(9), 3)
    twin = driver.add("b", prompt(9), 3)
    driver.step()
    assert twin.num_cached_tokens == 0
    driver.run()
    assert driver.outputs["a", 0] == driver.outputs["b", 0] == greedy(prompt(9), 3)


@pytest.mark.parametrize("length", [31, 32, 33])
def test_twins_that_wait_for_budget_take_over_what_the_first_computes_meanwhile(length: int) -> None:
    driver = Driver(64, 4, max_num_batched_tokens=12, prefill_chunk=8)
    for name in "abc":
        driver.add(name, prompt(length), 2)
    driver.run()
    assert driver.runner.tokens_computed < 2 * length
    for name in "abc":
        assert driver.outputs[name, 0] == greedy(prompt(length), 2)


def test_a_twin_is_never_left_without_a_token_to_compute() -> None:
    driver = Driver(64, 4, prefill_chunk=4, max_num_batched_tokens=8)
    driver.add("a", prompt(8), 2)
    driver.step()
    twin = driver.add("b", [*prompt(4), *prompt(8)[4:]], 2)
    driver.step()
    driver.run()
    assert twin.num_cached_tokens == 4
    assert driver.outputs["b", 0] == greedy(prompt(8), 2)


def test_half_computed_prefills_that_are_taken_back_leave_nothing_wrong_behind() -> None:
    """sglang#38319: pages of a retracted prefill served garbage."""
    driver = Driver(32, 4, prefill_chunk=6)
    first = driver.add("a", prompt(16), 3)
    driver.step()
    assert first.num_computed_tokens == 6
    driver.scheduler.remove(first, SequenceState.ABORTED)
    second = driver.add("b", prompt(16), 3)
    driver.run()
    assert second.num_cached_tokens == 4, "the one block that was complete"
    assert driver.outputs["b", 0] == greedy(prompt(16), 3)


def test_two_tenants_with_salts_of_their_own_never_share_a_block() -> None:
    """llama.cpp#27148."""
    driver = Driver(64, 4)
    driver.add("a", prompt(16), 2, salt="one")
    driver.run()
    other = driver.add("b", prompt(16), 2, salt="two")
    driver.run()
    assert other.num_cached_tokens == 0
    assert driver.outputs["b", 0] == driver.outputs["a", 0]


def test_without_the_cache_everything_is_computed() -> None:
    driver = Driver(32, 4, prefix_cache=False)
    for name in "ab":
        driver.add(name, prompt(9), 1)
        driver.run()
    assert driver.runner.tokens_computed == 18
