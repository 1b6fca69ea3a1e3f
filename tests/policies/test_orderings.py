"""What each policy orders by."""

from __future__ import annotations

import pytest

from policies import Job, create_policy
from tests.policies.simulation import serve


def job(**fields: object) -> Job:
    return Job(**{"id": "x", "arrival": 100.0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "fields", "slack"),
    [
        ("fcfs", {}, {"class_slack": 5.0, "predicted_tokens": 9.0, "deadline": 101.0}, 0.0),
        ("priority", {}, {"class_slack": 5.0, "predicted_tokens": 9.0}, 5.0),
        ("priority", {"max_slack_s": 2.0}, {"class_slack": 5.0}, 2.0),
        ("sjf", {"alpha": 10.0}, {"prompt_tokens": 100, "predicted_tokens": 40.0}, 5.0),
        ("sjf", {"alpha": 10.0, "prompt_weight": 0.0}, {"prompt_tokens": 100, "predicted_tokens": 40.0}, 4.0),
        ("sjf", {"alpha": 10.0, "default_tokens": 30}, {}, 3.0),
        ("sjf", {"alpha": 10.0}, {"predicted_tokens": 40.0, "max_tokens": 20}, 2.0),
        ("sjf", {"alpha": 10.0, "max_slack_s": 1.0}, {"predicted_tokens": 40.0}, 1.0),
        ("predicted", {}, {"prompt_tokens": 9999, "predicted_tokens": 2.0}, 0.0),
        ("predicted", {}, {"predicted_tokens": 9e9}, 30.0),
        ("predicted", {}, {"max_tokens": 2}, 0.0),
        ("predicted", {"max_slack_s": 5.0}, {"predicted_tokens": 9e9}, 5.0),
        ("edf", {}, {"deadline": 107.0}, 7.0),
        ("edf", {"default_slack_s": 3.0}, {}, 3.0),
        ("edf", {}, {"deadline": 10.0}, 0.0),
        ("edf", {"max_slack_s": 50.0}, {"deadline": 1000.0}, 50.0),
        ("prefill-first", {"prefill_rate": 100.0}, {"prompt_tokens": 100, "predicted_tokens": 9e9}, 1.0),
        ("prefill-first", {"prefill_rate": 100.0}, {"prompt_tokens": 10**9}, 2.0),
    ],
)
def test_the_key_is_arrival_plus_the_documented_slack(
    name: str, options: dict[str, float], fields: dict[str, object], slack: float
) -> None:
    assert create_policy(name, options).key(job(**fields)) == pytest.approx(100.0 + slack)


@pytest.mark.parametrize(
    ("name", "urgent", "patient"),
    [
        ("priority", {"class_slack": 0.0}, {"class_slack": 10.0}),
        ("sjf", {"predicted_tokens": 10.0}, {"predicted_tokens": 1000.0}),
        ("sjf", {"prompt_tokens": 10}, {"prompt_tokens": 10_000}),
        ("predicted", {"predicted_tokens": 10.0}, {"predicted_tokens": 1000.0}),
        ("edf", {"deadline": 105.0}, {"deadline": 200.0}),
        ("edf", {"deadline": 105.0}, {}),
        ("prefill-first", {"prompt_tokens": 10}, {"prompt_tokens": 5000}),
    ],
)
def test_the_urgent_overtakes_the_patient_that_came_just_before(
    name: str, urgent: dict[str, object], patient: dict[str, object]
) -> None:
    jobs = [job(id="patient", arrival=99.9, **patient), job(id="urgent", **urgent)]
    first = Job(id="running", arrival=99.0)
    served = serve(create_policy(name), [first, *jobs], service_s=lambda _: 5.0)
    assert [entry.job.id for entry in served] == ["running", "urgent", "patient"]


def test_only_the_packing_policy_passes_over_misfits() -> None:
    assert create_policy("predicted", {"max_skip": 3}).max_skip == 3  # type: ignore[attr-defined]
    assert create_policy("fcfs").max_skip == 0  # type: ignore[attr-defined]
