"""Who computes what in which step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.sequence import SequenceState
from policies.priority import Priority
from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import greedy


def test_one_request_alone_produces_what_the_model_says() -> None:
    driver = Driver()
    driver.add("a", prompt(5), 6)
    driver.run()
    assert driver.outputs["a", 0] == greedy(prompt(5), 6)


def test_rows_that_finish_at_every_different_step_do_not_disturb_the_others() -> None:
    """scouzi1966/maclocal-api#140."""
    driver = Driver(64, 4)
    for i in range(8):
        driver.add(f"r{i}", prompt(3 + i, i), 1 + i)
    driver.run()
    for i in range(8):
        assert driver.outputs[f"r{i}", 0] == greedy(prompt(3 + i, i), 1 + i)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 16, 512])
@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_chunked_prefill_changes_nothing(chunk: int, block_size: int) -> None:
    driver = Driver(64, block_size, prefill_chunk=chunk)
    driver.add("a", prompt(13), 3)
    driver.add("b", prompt(9, 5), 3)
    driver.run()
    assert driver.outputs["a", 0] == greedy(prompt(13), 3)
    assert driver.outputs["b", 0] == greedy(prompt(9, 5), 3)


def test_a_step_never_exceeds_its_token_budget_and_decodes_come_first() -> None:
    driver = Driver(64, 4, max_num_batched_tokens=8)
    driver.add("a", prompt(6), 12)
    driver.step()
    driver.add("b", prompt(20, 3), 2)
    driver.run()
    mixed = [step for step in driver.runner.steps if len(step.query_lens) > 1]
    assert mixed[0].query_lens == [1, 7], "one decode, and the chunk takes what is left"
    assert all(len(step.token_ids) <= 8 for step in driver.runner.steps)


def test_a_prefill_takes_at_most_its_chunk_so_that_a_second_one_shares_the_step() -> None:
    driver = Driver(64, 4, max_num_batched_tokens=16, prefill_chunk=10)
    driver.add("a", prompt(14), 1)
    driver.add("b", prompt(14, 3), 1)
    driver.step()
    assert driver.runner.steps[0].query_lens == [10, 6]


def test_running_requests_keep_decoding_while_a_long_prompt_is_prefilled() -> None:
    driver = Driver(64, 4, max_num_batched_tokens=8)
    short = driver.add("short", prompt(3), 20)
    driver.step()
    driver.add("long", prompt(50, 9), 1)
    for produced in range(2, 8):
        driver.step()
        assert short.num_output_tokens == produced


def test_without_mixing_no_step_has_both_kinds_and_neither_kind_starves() -> None:
    driver = Driver(64, 4, mix=False, prefill_chunk=4)
    driver.add("a", prompt(4), 10)
    driver.step()
    driver.add("b", prompt(30, 2), 3)
    driver.run()
    kinds = ["".join("d" if n == 1 else "p" for n in step.query_lens) for step in driver.runner.steps]
    assert not any("d" in kind and "p" in kind for kind in kinds)
    assert kinds[:6] == ["p", "d", "p", "d", "p", "d"]
    assert driver.outputs["b", 0] == greedy(prompt(30, 2), 3)


def test_seats_bound_how_many_sequences_run_at_once() -> None:
    driver = Driver(64, 4, max_num_seqs=3)
    for i in range(7):
        driver.add(f"r{i}", prompt(4, i), 5)
    driver.run()
    assert max(len(step.query_lens) for step in driver.runner.steps) == 3
    assert len(driver.outputs) == 7


def test_a_request_whose_pending_token_completes_it_is_not_scheduled_again() -> None:
    """transformers continuous batching: max_new_tokens was checked one step late, for a useless token."""
    driver = Driver()
    driver.add("a", prompt(4), 3)
    driver.run()
    assert driver.runner.tokens_computed == 4 + 2, "the last token's KV is never needed"
    assert len(driver.runner.steps) == 3


def test_removing_is_legal_in_every_state_and_idempotent() -> None:
    """vllm PR#25067."""
    for steps in range(8):
        driver = Driver(32, 4, prefill_chunk=3, max_num_seqs=2)
        sequences = [driver.add(f"r{i}", prompt(8, i), 3, n=1 + i % 2) for i in range(3)]
        for _ in range(steps):
            driver.step()
        for sequence in sequences:
            driver.scheduler.remove(sequence, SequenceState.ABORTED)
            driver.scheduler.remove(sequence, SequenceState.ABORTED)
            driver.scheduler.check_integrity()
        for sequence in list(driver.scheduler):
            driver.scheduler.remove(sequence, SequenceState.ABORTED)
        assert driver.pool.available == driver.pool.num_blocks


REQUEST = st.tuples(
    st.integers(1, 9),  # prompt length
    st.integers(0, 3),  # which of four texts: shared beginnings
    st.integers(1, 8),  # max_tokens
    st.integers(1, 3),  # n
    st.floats(0, 0.01),  # slack
    st.integers(0, 6),  # arrives after this many steps
)


@given(
    requests=st.lists(REQUEST, min_size=1, max_size=8),
    block_size=st.integers(1, 5),
    spare=st.integers(0, 6),
    chunk=st.integers(1, 9),
    mix=st.booleans(),
    cache=st.booleans(),
    admission=st.sampled_from(["optimistic", "predicted", "guaranteed"]),
    offload=st.sampled_from([0, 2, 50]),
)
@settings(max_examples=150, deadline=None)
def test_any_mix_in_a_barely_sufficient_pool_equals_solo_runs(
    requests: list[tuple[int, int, int, int, float, int]],
    block_size: int,
    spare: int,
    chunk: int,
    mix: bool,
    cache: bool,
    admission: str,
    offload: int,
) -> None:
    longest = max(length + max_tokens for length, _, max_tokens, *_ in requests)
    driver = Driver(
        -(-longest // block_size) + spare,
        block_size,
        policy=Priority(),
        prefix_cache=cache,
        prefill_chunk=chunk,
        mix=mix,
        admission=admission,
        offload_blocks=offload,
        max_num_seqs=4,
        max_num_batched_tokens=8,
    )
    waiting = sorted(enumerate(requests), key=lambda entry: entry[1][-1])
    step = 0
    guaranteed = admission == "guaranteed"
    while waiting:
        while waiting and waiting[0][1][-1] <= step:
            number, (length, text, max_tokens, n, slack, _) = waiting.pop(0)
            added = driver.add(f"r{number}", prompt(length, text), max_tokens, n=n, slack=slack)
            guaranteed &= driver.scheduler.expected_blocks(added, added.forks) <= driver.pool.num_blocks
        driver.step()
        step += 1
    driver.run()
    for number, (length, text, max_tokens, n, _, _) in enumerate(requests):
        expected = greedy(prompt(length, text), max_tokens)
        for index in range(n):
            assert driver.outputs[f"r{number}", index] == expected
    if guaranteed:
        assert driver.scheduler.preemptions == 0
