"""Making policies by name."""

from __future__ import annotations

import math
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from policies import Job, Policy, PolicyError, create_policy, policy_names, registry
from policies.ordering import Ordering


class Reversed(Ordering):
    name = "reversed"

    def __init__(self, *, bound: float = 1.0) -> None:
        super().__init__(max_slack=math.inf)
        self.bound = bound

    def key(self, job: Job) -> float:
        return -job.arrival


class NoPolicy:
    name = "none"


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
        for name, value in [
            ("reversed", f"{__name__}:Reversed"),
            ("none", f"{__name__}:NoPolicy"),
            ("gone", "no_such_module:Policy"),
            ("fcfs", f"{__name__}:Reversed"),
        ]
    )

    def entry_points(**wanted: Any) -> EntryPoints:
        return points.select(**wanted)

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_the_seven_named_policies_exist() -> None:
    assert policy_names()[:7] == ("fcfs", "sjf", "priority", "edf", "predicted", "prefill-first", "fair")
    for name in policy_names()[:7]:
        assert isinstance(create_policy(name), Policy)


def test_every_call_makes_a_new_policy() -> None:
    assert create_policy("fair") is not create_policy("fair")


@pytest.mark.usefixtures("third_party")
def test_other_packages_bring_policies_by_entry_point() -> None:
    assert policy_names()[7:] == ("gone", "none", "reversed")
    policy = create_policy("reversed", {"bound": 3.0})
    assert isinstance(policy, Reversed)
    assert policy.bound == 3.0


@pytest.mark.usefixtures("third_party")
def test_a_built_in_name_cannot_be_taken_over() -> None:
    assert type(create_policy("fcfs")).__name__ == "FCFS"


@pytest.mark.usefixtures("third_party")
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("prio", {}, r"unknown policy 'prio'.*Known policies: fcfs, sjf"),
        ("priorty", {}, "Did you mean 'priority'"),
        ("sjf", {"alfa": 1}, r"no option 'alfa'.*Did you mean 'alpha'.*Options: alpha, prompt_weight"),
        ("fcfs", {"x": 1}, "Options: none"),
        ("sjf", {"alpha": 0}, "alpha must be a finite number > 0, not 0"),
        ("sjf", {"alpha": "fast"}, "alpha must be"),
        ("edf", {"max_slack_s": math.inf}, "max_slack_s"),
        ("predicted", {"max_skip": -1}, "max_skip must be a whole number >= 0"),
        ("none", {}, "does not have the methods"),
        ("gone", {}, "cannot be loaded"),
    ],
)
def test_what_is_wrong_with_a_request_for_a_policy_is_named(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        create_policy(name, options)
