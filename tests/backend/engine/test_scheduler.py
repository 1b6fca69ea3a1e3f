from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.batch import Batch
from backend.engine.sequence import SequenceState
from policies import Job
from policies.predicted import Predicted
from policies.priority import Priority
from policies.sjf import ShortestJobFirst
from tests.backend.engine.driver import Driver
from tests.backend.engine.fake import greedy


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % 60 for i in range(length)]


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


# -- n > 1 and copy on write ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [3, 4, 5, 8])
def test_n_choices_compute_the_prompt_once_and_share_its_full_blocks(length: int) -> None:
    driver = Driver(32, 4)
    driver.add("a", prompt(length), 4, n=3)
    driver.step()
    assert driver.runner.tokens_computed == length
    assert driver.pool.num_owned == -(-length // 4), "until they differ, three choices take one choice's blocks"
    driver.run()
    for index in range(3):
        assert driver.outputs["a", index] == greedy(prompt(length), 4)


def test_forks_copy_the_last_block_only_when_they_write_and_the_last_holder_writes_in_place() -> None:
    driver = Driver(32, 4)
    driver.add("a", prompt(6), 3, n=3)
    driver.step()
    plan = driver.scheduler.schedule()
    assert plan is not None
    assert len(plan.copies) == 2
    assert {source for source, _ in plan.copies} == {1}


def test_no_choice_is_preempted_for_a_copy_that_the_last_holder_does_not_need() -> None:
    driver = Driver(3, 2)
    driver.add("a", prompt(1), 2, n=3)
    driver.run()
    assert driver.scheduler.preemptions == 0
    assert all(driver.outputs["a", index] == greedy(prompt(1), 2) for index in range(3))


def test_the_choices_of_one_request_need_their_seats_at_admission() -> None:
    driver = Driver(32, 4, max_num_seqs=3)
    driver.add("a", prompt(4), 3)
    driver.add("b", prompt(4, 9), 3, n=3)
    driver.run()
    assert max(len(step.query_lens) for step in driver.runner.steps) == 3
    assert len(driver.outputs) == 4


# -- prefix cache --------------------------------------------------------------------------------------------


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


# -- preemption ----------------------------------------------------------------------------------------------


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


# -- admission -----------------------------------------------------------------------------------------------


def test_admission_leaves_the_watermark_free_for_those_who_run() -> None:
    driver = Driver(10, 2, watermark_blocks=3)
    driver.add("a", prompt(8), 6)
    driver.add("b", prompt(8, 5), 2)
    driver.step()
    assert driver.scheduler.num_running == 1, "4 of 6 free blocks would leave 2"
    driver.run()
    assert driver.scheduler.preemptions == 0


def test_the_watermark_never_keeps_a_request_out_of_an_idle_engine() -> None:
    driver = Driver(4, 2, watermark_blocks=3)
    driver.add("a", prompt(7), 1)
    driver.run()
    assert ("a", 0) in driver.outputs


def test_guaranteed_admission_never_preempts() -> None:
    driver = Driver(12, 2, admission="guaranteed")
    for i in range(5):
        driver.add(f"r{i}", prompt(4, i), 10, n=1 + i % 2)
    driver.run()
    assert driver.scheduler.preemptions == 0
    assert len(driver.outputs) == 7


def test_optimistic_admission_preempts_in_the_same_situation() -> None:
    driver = Driver(12, 2)
    for i in range(5):
        driver.add(f"r{i}", prompt(4, i), 10, n=1 + i % 2)
    driver.run()
    assert driver.scheduler.preemptions > 0
    assert len(driver.outputs) == 7


def test_priority_admits_the_urgent_first_and_ages_the_patient() -> None:
    """teradata loom PR#376: ageing put everything into one class. vllm PR#20608: keys must not move in a heap."""
    driver = Driver(32, 4, max_num_seqs=1, policy=Priority())
    driver.add("running", prompt(4), 2)
    driver.step()
    driver.add("patient", prompt(4, 2), 1, slack=0.0025)
    for i in range(4):
        driver.add(f"urgent{i}", prompt(4, 3 + i), 1)
    driver.run()
    assert driver.order == ["running", "urgent0", "urgent1", "patient", "urgent2", "urgent3"]


def test_shortest_job_first_admits_by_predicted_work() -> None:
    driver = Driver(32, 4, max_num_seqs=1, policy=ShortestJobFirst())
    driver.add("running", prompt(4), 2)
    driver.step()
    driver.add("long", prompt(4, 2), 9, predicted=400.0)
    driver.add("short", prompt(4, 3), 9, predicted=3.0)
    driver.run()
    assert driver.order == ["running", "short", "long"]


def test_packing_by_predicted_length_passes_over_what_does_not_fit_a_bounded_number_of_times() -> None:
    driver = Driver(16, 2, policy=Predicted(max_skip=2, alpha=1e9))
    driver.add("running", prompt(4), 12, predicted=12.0)
    driver.step()
    big = driver.add("big", prompt(16, 2), 8, predicted=8.0)
    for i in range(5):
        driver.add(f"small{i}", prompt(2, 3 + i), 2, predicted=2.0)
    driver.run()
    assert driver.order.index("big") == 3, "running, two small ones, then the line stands still for the big one"
    assert big.passed_over == 2
    assert driver.scheduler.preemptions == 0
    assert driver.outputs["big", 0] == greedy(prompt(16, 2), 8)


class Witness(Priority):
    """Checks at each first admission that nobody with an earlier virtual deadline is left waiting as a newcomer."""

    driver: Driver

    def dispatched(self, job: Job) -> None:
        waiting = [s for s in self.driver.scheduler._waiting if not s.admitted and s.job is not job]
        assert all(self.key(job) <= sequence.key for sequence in waiting)


@given(st.lists(st.tuples(st.integers(1, 8), st.floats(0, 0.02), st.integers(0, 2)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_nobody_is_overtaken_by_what_arrives_later_than_its_slack(arrivals: list[tuple[int, float, int]]) -> None:
    """sglang#31954: cache-cold requests starved; the bound composes with any order."""
    policy = Witness()
    driver = policy.driver = Driver(10, 2, max_num_seqs=3, max_num_batched_tokens=6, policy=policy)
    for number, (length, slack, steps) in enumerate(arrivals):
        driver.add(f"r{number}", prompt(length, number), 4, slack=slack)
        for _ in range(steps):
            driver.step()
    driver.run()
    assert len(driver.outputs) == len(arrivals)


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
            guaranteed &= driver.scheduler.expected_blocks(added) <= driver.pool.num_blocks
        driver.step()
        step += 1
    driver.run()
    for number, (length, text, max_tokens, n, _, _) in enumerate(requests):
        expected = greedy(prompt(length, text), max_tokens)
        for index in range(n):
            assert driver.outputs[f"r{number}", index] == expected
    if guaranteed:
        assert driver.scheduler.preemptions == 0
