"""Who is let in, and when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies import Job
from policies.predicted import Predicted
from policies.priority import Priority
from policies.sjf import ShortestJobFirst
from tests.backend.engine.driver import Driver, prompt
from tests.backend.engine.fake import greedy


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
    driver = Driver(16, 2, policy=Predicted(max_skip=2, max_slack_s=0.0))
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
