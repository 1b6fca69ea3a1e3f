"""What every policy promises, whatever it orders by."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import Job, JobHeap, Policy, create_policy
from policies.registry import BUILTIN
from tests.policies.simulation import serve, take

NAMES = sorted(BUILTIN)
FORGETFUL = [name for name in NAMES if name != "predicted"]
"""`predicted` remembers the distribution of the lengths, see `test_predicted.py`; no policy remembers jobs."""
BOUNDED = [name for name in NAMES if math.isfinite(create_policy(name).max_slack)]

jobs_strategy = st.lists(
    st.builds(
        Job,
        id=st.just("same id for all: clients choose them"),
        arrival=st.floats(0, 100),
        class_slack=st.one_of(st.floats(0, 50), st.sampled_from([-1.0, math.inf, math.nan])),
        tenant=st.sampled_from(["a", "b", "c"]),
        weight=st.one_of(st.floats(0.1, 10), st.sampled_from([0.0, -1.0, math.inf, math.nan])),
        prompt_tokens=st.integers(0, 100_000),
        predicted_tokens=st.one_of(st.none(), st.floats(0, 5000), st.sampled_from([-1.0, math.inf, math.nan])),
        deadline=st.one_of(st.none(), st.floats(-10, 1000), st.sampled_from([math.inf, math.nan])),
        max_tokens=st.one_of(st.none(), st.integers(0, 5000)),
    ),
    max_size=30,
)


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return create_policy(request.param)


def test_answers_to_the_policy_protocol_and_its_own_name(policy: Policy) -> None:
    assert isinstance(policy, Policy)
    assert create_policy(policy.name).name == policy.name
    assert policy.max_slack >= 0.0


def test_documents_what_inputs_knobs_bound_and_trade_offs(policy: Policy) -> None:
    documentation = type(policy).__doc__ or ""
    for heading in ("- What:", "- Inputs:", "- Knobs:", "- Bound:", "- Trade-offs:"):
        assert heading in documentation, heading


@given(jobs=jobs_strategy)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_equal_histories_give_equal_keys(name: str, jobs: list[Job]) -> None:
    one, other = create_policy(name), create_policy(name)
    copies = [replace(job) for job in jobs]
    assert [one.key(job) for job in jobs] == [other.key(job) for job in copies]


@given(jobs=jobs_strategy)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_key_lies_between_arrival_and_arrival_plus_max_slack(name: str, jobs: list[Job]) -> None:
    policy = create_policy(name)
    for job in jobs:
        assert job.arrival <= policy.key(job) <= job.arrival + policy.max_slack


@given(jobs=jobs_strategy)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", NAMES)
def test_no_job_however_odd_gets_a_key_that_cannot_be_ordered(name: str, jobs: list[Job]) -> None:
    policy = create_policy(name)
    assert not any(math.isnan(policy.key(job)) for job in jobs)


def test_the_key_of_a_waiting_job_does_not_change_what_others_do(policy: Policy) -> None:
    """Keys are static: what happens later only shows in the keys of later jobs."""
    heap: JobHeap[Job] = JobHeap()
    handles = []
    for index in range(20):
        job = Job(id=str(index), arrival=float(index), tenant=str(index % 3), prompt_tokens=10, predicted_tokens=50.0)
        handles.append(heap.push(policy.key(job), job))
    keys = [handle.key for handle in handles]
    for _ in range(10):
        job = take(heap)
        policy.dispatched(job)
        policy.completed(job, 4000)
    assert [handle.key for handle in handles] == keys
    order = [handle.item for handle in heap.first()]
    assert order == [take(heap) for _ in range(len(order))]


def test_equals_are_served_in_the_order_they_came(policy: Policy) -> None:
    jobs = [
        Job(id=str(i), arrival=1.0, tenant="t", prompt_tokens=7, predicted_tokens=9.0, class_slack=2.0)
        for i in range(50)
    ]
    assert [served.job.id for served in serve(policy, jobs, service_s=lambda _: 0.1)] == [job.id for job in jobs]


@pytest.mark.parametrize("name", BOUNDED)
def test_nobody_is_overtaken_by_a_job_that_came_later_than_max_slack(name: str) -> None:
    """Ten times more work than can be served, all of it more urgent in every respect than the victims."""
    policy = create_policy(name, {"priority": {"max_slack_s": 20.0}, "edf": {"max_slack_s": 40.0}}.get(name, {}))
    victims = [
        Job(id=f"victim{t}", arrival=float(t), class_slack=1e9, prompt_tokens=10**6, predicted_tokens=1e6)
        for t in range(0, 50, 10)
    ]
    flood = [
        Job(id="flood", arrival=i * 0.1, prompt_tokens=1, predicted_tokens=1.0, deadline=i * 0.1) for i in range(3000)
    ]
    served = serve(policy, victims + flood, service_s=lambda _: 1.0)
    assert len(served) == len(victims) + len(flood)
    for victim in victims:
        place = next(i for i, entry in enumerate(served) if entry.job is victim)
        assert all(entry.job.arrival <= victim.arrival + policy.max_slack for entry in served[:place])


@pytest.mark.parametrize("name", BOUNDED)
def test_behind_a_bounded_queue_the_wait_is_at_most_slack_plus_one_queue(name: str) -> None:
    policy = create_policy(name, {"priority": {"max_slack_s": 20.0}, "edf": {"max_slack_s": 40.0}}.get(name, {}))
    service, bound = 1.0, 25
    victim = Job(id="victim", arrival=5.0, class_slack=1e9, prompt_tokens=10**6, predicted_tokens=1e6)
    flood = [
        Job(id="flood", arrival=5.0 + i * 0.1, prompt_tokens=1, predicted_tokens=1.0, deadline=0.0)
        for i in range(4000)
    ]
    served = serve(policy, [victim, *flood], service_s=lambda _: service, max_queued=bound)
    entry = next(entry for entry in served if entry.job is victim)
    assert entry.start - victim.arrival <= policy.max_slack + (bound + 1) * service


@given(
    jobs=jobs_strategy,
    fates=st.lists(st.sampled_from(["complete", "abort", "remove", "leave twice"]), min_size=30, max_size=30),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", FORGETFUL)
def test_whatever_becomes_of_jobs_nothing_is_kept_of_them(name: str, jobs: list[Job], fates: list[str]) -> None:
    policy = create_policy(name)
    fresh = create_policy(name)
    for job in jobs:
        policy.key(job)
    for job, fate in zip(jobs, fates, strict=False):
        if fate in ("complete", "abort", "leave twice"):
            policy.dispatched(job)
            policy.completed(job, 0 if fate == "abort" else 123)
        if fate in ("remove", "leave twice"):
            policy.removed(job)
    probe = Job(id="probe", arrival=1000.0, tenant="a", predicted_tokens=10.0)
    assert policy.key(probe) == fresh.key(replace(probe)), "a queue that ran empty starts level"


def test_notifications_about_jobs_never_queued_are_harmless(policy: Policy) -> None:
    stranger = Job(id="stranger", arrival=0.0)
    policy.dispatched(stranger)
    policy.completed(stranger, 10)
    policy.removed(stranger)
