"""Several choices of one prompt share its blocks until they write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.request import FinishReason, SamplingParams
from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import fake_core, fake_options, greedy
from tests.backend.engine.results import Results, request, run


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


def test_choices_beyond_the_free_seats_start_as_seats_become_free() -> None:
    driver = Driver(64, 4, max_num_seqs=4)
    driver.add("stream", prompt(4, 9), 40)
    driver.step()
    driver.add("a", prompt(5), 2, n=4)
    driver.add("behind", prompt(3, 5), 2)
    while ("behind", 0) not in driver.outputs:
        assert driver.step()
    assert ("stream", 0) not in driver.outputs, "neither waits for the long stream to end"
    assert driver.order == ["stream", "a", "behind"]
    driver.run()
    assert [driver.outputs["a", index] for index in range(4)] == [greedy(prompt(5), 2)] * 4
    assert max(len(step.query_lens) for step in driver.runner.steps) == 4


def test_choices_that_start_later_take_the_prompt_from_the_prefix_cache() -> None:
    driver = Driver(64, 4, max_num_seqs=2)
    driver.add("a", prompt(17), 1, n=4)
    driver.run()
    assert len(driver.outputs) == 4
    assert driver.runner.tokens_computed == 17 + 1
    assert (driver.scheduler.prefix_queries, driver.scheduler.prefix_hits) == (17, 0), "one request looked it up once"


def test_seats_that_become_free_go_to_choices_that_wait_before_later_arrivals() -> None:
    driver = Driver(64, 4, max_num_seqs=2)
    driver.add("a", prompt(4), 5, n=5)
    driver.step()
    for i in range(4):
        driver.add(f"later{i}", prompt(4, 2 + i), 1)
    driver.run()
    done = list(driver.outputs)
    assert done[:4] == [("a", index) for index in range(4)]
    assert len(done) == 9


def test_choices_start_as_blocks_become_free() -> None:
    driver = Driver(12, 2, admission="guaranteed")
    driver.add("stream", prompt(3, 9), 12)
    driver.step()
    driver.add("a", prompt(4), 3, n=5)
    while ("a", 0) not in driver.outputs:
        assert driver.step()
    assert ("stream", 0) not in driver.outputs, "five choices would need more blocks than the stream leaves"
    driver.run()
    assert driver.scheduler.preemptions == 0
    assert [driver.outputs["a", index] for index in range(5)] == [greedy(prompt(4), 3)] * 5


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2)), max_size=8),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["optimistic", "predicted", "guaranteed"]),
)
@settings(max_examples=60, deadline=None)
def test_every_choice_is_what_it_would_be_alone_however_few_seats_there_are(
    requests: list[tuple[int, int, int, int]], seats: int, prefix_cache: bool, admission: str
) -> None:
    driver = Driver(8, 2, max_num_seqs=seats, prefix_cache=prefix_cache, admission=admission, offload_blocks=3)
    for number, (length, max_tokens, n, steps) in enumerate(requests):
        driver.add(f"r{number}", prompt(length, number), max_tokens, n=n)
        for _ in range(steps):
            driver.step()
    driver.run()
    for number, (length, max_tokens, n, _) in enumerate(requests):
        for index in range(n):
            assert driver.outputs[f"r{number}", index] == greedy(prompt(length, number), max_tokens)
    assert len(driver.outputs) == sum(n for _, _, n, _ in requests)


@pytest.mark.parametrize("seats", [1, 2, 3])
def test_seeds_and_usage_do_not_depend_on_the_seats(seats: int) -> None:
    params = SamplingParams(max_tokens=8, seed=5, ignore_eos=True)
    outcomes = []
    for max_num_seqs in (8, seats + 1):
        core = fake_core(fake_options(max_num_seqs=max_num_seqs))
        core.add(request("stream", [9], SamplingParams(max_tokens=60, seed=1, ignore_eos=True)))
        core.step()
        core.add(request("a", [1, 2, 3, 4, 5], params, n=min(4, max_num_seqs)))
        results = run(core)
        choices = [results["a", index].token_ids for index in range(min(4, seats + 1))]
        outcomes.append(choices)
        assert results.usage["a"].cached_tokens == 0
        assert results.usage["a"].completion_tokens == 8 * min(4, max_num_seqs)
        assert core.stats().prompt_tokens == 1 + 5
    assert outcomes[0] == outcomes[1]
    assert len({tuple(choice) for choice in outcomes[0]}) == len(outcomes[0])


def test_an_abort_ends_the_choices_that_run_and_those_that_wait_once_each() -> None:
    core = fake_core(fake_options(max_num_seqs=4))
    core.add(request("stream", [9], SamplingParams(max_tokens=20, ignore_eos=True)))
    core.step()
    core.add(request("a", [1, 2, 3], SamplingParams(max_tokens=30, ignore_eos=True), n=4))
    results = Results()
    for _ in range(3):
        results.add(core.step())
    assert not results["a", 3].token_ids, "the fourth choice has no seat"
    results.add(core.abort("a"))
    core.check_integrity()
    assert [results["a", index].finish for index in range(4)] == [FinishReason.ABORT] * 4
    assert results.usage["a"].completion_tokens == sum(len(results["a", index].token_ids) for index in range(4))
    run(core, results)
    assert results["stream", 0].finish is FinishReason.LENGTH
