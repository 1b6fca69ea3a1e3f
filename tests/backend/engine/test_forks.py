"""Several choices of one prompt share its blocks until they write."""

from __future__ import annotations

import pytest

from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import greedy


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
