"""Fair shares between tenants, in tokens."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import Job, JobHeap
from policies.fair import Fair
from tests.policies.simulation import take

Backlog = dict[str, list[Job]]


class Plant:
    """A server with `slots` parallel slots and tenants that always have `depth` jobs waiting."""

    def __init__(self, policy: Fair, *, slots: int, depth: int, seed: int = 1) -> None:
        self.policy = policy
        self.slots = slots
        self.depth = depth
        self.rng = random.Random(seed)
        self.heap: JobHeap[Job] = JobHeap()
        self.running: list[tuple[float, int, Job]] = []
        self.waiting: Counter[str] = Counter()
        self.sizes: dict[str, tuple[int, int]] = {}
        self.weights: dict[str, float] = defaultdict(lambda: 1.0)
        self.dispatched: Counter[str] = Counter()
        """Real tokens handed to the server so far, by tenant."""
        self.actual: dict[int, int] = {}
        self.now = 0.0
        self.count = 0

    def add(self, tenant: str, prompt: int, output: int, error: float = 1.0) -> Job:
        """Queue a job that will really produce `output` tokens, predicted as `error` times that."""
        job = Job(
            id="same",
            arrival=self.now,
            tenant=tenant,
            weight=self.weights[tenant],
            prompt_tokens=prompt,
            predicted_tokens=output * error,
        )
        self.actual[id(job)] = output
        self.heap.push(self.policy.key(job), job)
        self.waiting[tenant] += 1
        return job

    def step(self) -> str:
        """Dispatch one job, after completing one when all slots are taken; return its tenant."""
        if len(self.running) >= self.slots:
            self.running.sort(key=lambda entry: entry[:2])
            self.now, _, done = self.running.pop(0)
            self.policy.completed(done, self.actual.pop(id(done)))
        job = take(self.heap)
        self.policy.dispatched(job)
        self.waiting[job.tenant] -= 1
        self.dispatched[job.tenant] += job.prompt_tokens + self.actual[id(job)]
        self.count += 1
        duration = (job.prompt_tokens + self.actual[id(job)]) * self.rng.uniform(0.5, 2.0)
        self.running.append((self.now + duration, self.count, job))
        return job.tenant

    def keep_backlogged(self, jobs: dict[str, tuple[int, int, float]]) -> None:
        for tenant, (prompt, output, error) in jobs.items():
            while self.waiting[tenant] < self.depth:
                self.add(tenant, prompt, output, error)


@given(
    slots=st.integers(1, 8),
    depth=st.integers(1, 6),
    size=st.integers(1, 200),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_two_backlogged_tenants_of_ten_to_one_sizes_get_their_shares(
    slots: int, depth: int, size: int, weight: float, seed: int
) -> None:
    plant = Plant(Fair(), slots=slots, depth=depth, seed=seed)
    plant.weights["small"] = weight
    jobs = {"small": (size, size, 1.0), "large": (10 * size, 10 * size, 1.0)}
    bound = 20 * size / 1.0 + 2 * size / weight
    for _ in range(300):
        plant.keep_backlogged(jobs)
        plant.step()
        apart = abs(plant.dispatched["small"] / weight - plant.dispatched["large"])
        assert apart <= bound + 1e-6
        assert apart <= 2 * max(20 * size, 2 * size / weight) + 1e-6


def test_wrong_predictions_are_made_good_at_completion() -> None:
    """One tenant is predicted at a tenth, the other at five times what it really needs."""
    plant = Plant(Fair(), slots=4, depth=2)
    jobs = {"under": (10, 500, 0.1), "over": (10, 500, 5.0)}
    for _ in range(4000):
        plant.keep_backlogged(jobs)
        plant.step()
    apart = abs(plant.dispatched["under"] - plant.dispatched["over"])
    queued_or_running = (4 + 2) * 510 * 5
    assert apart <= 2 * queued_or_running
    assert apart / sum(plant.dispatched.values()) < 0.02


def test_ten_tenants_of_all_sizes_share_evenly() -> None:
    plant = Plant(Fair(), slots=8, depth=3)
    jobs = {f"t{i}": (20 * (i + 1), 10 * (10 - i) * (i + 1), 1.0 + 0.1 * (i - 5)) for i in range(10)}
    for _ in range(5000):
        plant.keep_backlogged(jobs)
        plant.step()
    shares = list(plant.dispatched.values())
    jain = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    assert jain >= 0.98


def test_a_long_prompt_tenant_cannot_exceed_its_share_by_a_tenth() -> None:
    plant = Plant(Fair(), slots=4, depth=8)
    for _ in range(2000):
        plant.keep_backlogged({"long": (3000, 100, 1.0), "short": (100, 100, 1.0)})
        plant.step()
    assert plant.dispatched["long"] <= 1.1 * sum(plant.dispatched.values()) / 2


def test_shares_follow_the_weights() -> None:
    plant = Plant(Fair(), slots=2, depth=4)
    plant.weights.update(gold=3.0, bronze=1.0)
    for _ in range(3000):
        plant.keep_backlogged({"gold": (50, 50, 1.0), "bronze": (50, 50, 1.0)})
        plant.step()
    assert plant.dispatched["gold"] / plant.dispatched["bronze"] == pytest.approx(3.0, rel=0.02)


def test_idling_earns_no_credit() -> None:
    """A tenant that comes back gets its share from now on, not what it missed."""
    plant = Plant(Fair(), slots=1, depth=3)
    plant.add("back", 100, 100)
    for _ in range(500):
        plant.keep_backlogged({"busy": (100, 100, 1.0)})
        plant.step()
    before = Counter(plant.dispatched)
    tenants = []
    for _ in range(20):
        plant.keep_backlogged({"busy": (100, 100, 1.0), "back": (100, 100, 1.0)})
        tenants.append(plant.step())
    assert plant.dispatched["back"] - before["back"] <= 200 * 11
    assert "busy" in tenants[:6]


def test_cancelled_work_is_refunded() -> None:
    """A tenant that queues a lot and takes it back is not made to pay for it."""
    policy = Fair()
    plant = Plant(policy, slots=1, depth=2)
    plant.keep_backlogged({"other": (100, 100, 1.0)})
    plant.step()
    kept = plant.add("fickle", 100, 100)
    cancelled = [plant.add("fickle", 100, 100) for _ in range(50)]
    for job in cancelled:
        handle = next(h for h in plant.heap.first() if h.item is job)
        plant.heap.remove(handle)
        plant.waiting["fickle"] -= 1
        policy.removed(job)
    tenants = []
    for _ in range(20):
        plant.keep_backlogged({"other": (100, 100, 1.0), "fickle": (100, 100, 1.0)})
        tenants.append(plant.step())
    assert id(kept) not in plant.actual, "served"
    assert 9 <= tenants.count("fickle") <= 11


def test_jobs_of_one_tenant_are_served_in_order_whatever_was_refunded() -> None:
    policy = Fair()
    anchor = Job(id="anchor", arrival=0.0, tenant="z")
    policy.key(anchor)
    first = Job(id="first", arrival=0.0, tenant="t", predicted_tokens=1000.0)
    middle = Job(id="middle", arrival=0.0, tenant="t", predicted_tokens=1000.0)
    last = Job(id="last", arrival=0.0, tenant="t", predicted_tokens=1000.0)
    keys = [policy.key(first), policy.key(middle), policy.key(last)]
    policy.removed(middle)
    newcomer = Job(id="newcomer", arrival=1.0, tenant="t", predicted_tokens=1000.0)
    assert keys[0] < keys[2] <= policy.key(newcomer)
    after = Job(id="after", arrival=1.0, tenant="t", predicted_tokens=1000.0)
    assert policy.key(after) == 3 * 1000.0, "the refund was used: three paid for, the fourth starts there"


def test_unknown_lengths_are_learned_from_what_completed() -> None:
    policy = Fair(default_tokens=1000)
    anchor = Job(id="anchor", arrival=0.0, tenant="z")
    policy.key(anchor)
    for _ in range(200):
        job = Job(id="embedding", arrival=0.0, tenant="a", prompt_tokens=5)
        policy.key(job)
        policy.dispatched(job)
        policy.completed(job, 0)
    one, two = (Job(id=str(i), arrival=0.0, tenant="b", prompt_tokens=5) for i in range(2))
    assert policy.key(two) - policy.key(one) <= 0.0
    assert abs(policy.key(Job(id="3", arrival=0.0, tenant="b")) - policy.key(one)) < 20


@pytest.mark.parametrize("fate", ["completed", "removed"])
def test_memory_does_not_grow_with_the_number_of_tenants_ever_seen(fate: str) -> None:
    policy = Fair(max_tenants=100)
    anchor = Job(id="anchor", arrival=0.0, tenant="never idle")
    policy.key(anchor)
    for number in range(5000):
        job = Job(id="x", arrival=float(number), tenant=f"tenant {number}", predicted_tokens=10.0)
        policy.key(job)
        if fate == "completed":
            policy.dispatched(job)
            policy.completed(job, 3000)
        else:
            policy.removed(job)
        assert len(policy._busy) + len(policy._idle) <= 100 + 1
        assert len(policy._charges) == 1
    policy.removed(anchor)
    assert [len(kept) for kept in (policy._busy, policy._idle, policy._charges)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_weight": -1}, "input_weight"),
        ({"max_tenants": 0}, "max_tenants"),
        ({"max_tenants": 1.5}, "max_tenants"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Fair(**options)  # type: ignore[arg-type]
