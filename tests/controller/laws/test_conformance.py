"""What every law must keep, whatever it is fed with."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.laws import LAWS, Law, law_options, make_law
from controller.laws.options import SHARED
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Result
from controller.slo import SLO
from tests.controller.build import controller, observation

ON_UPSTREAM_TIME = sorted(set(LAWS) - {"fixed", "step"})


@dataclass(frozen=True)
class Step:
    seconds: float
    queue: float
    batch: int
    result: Result
    stale: bool
    app_limited: bool
    tick: bool
    slo: float | None


steps = st.lists(
    st.builds(
        Step,
        seconds=st.floats(0.001, 100.0),
        queue=st.floats(0.0, 20.0),
        batch=st.integers(1, 64),
        result=st.sampled_from([Result.OK, Result.OK, Result.OK, *Result]),
        stale=st.booleans(),
        app_limited=st.booleans(),
        tick=st.booleans(),
        slo=st.none() | st.floats(0.1, 50.0),
    ),
    max_size=60,
)


def play(law: str, sequence: list[Step], mode: str) -> PoolController:
    assert mode in ("merge", "gate")
    pool = controller(law=law, mode="merge" if mode == "merge" else "gate", low=2, high=32, window_ms=5.0)
    now = 100.0
    for step in sequence:
        now += 0.3
        generation = pool.setpoints.generation - step.stale
        pool.observe(
            observation(
                step.seconds,
                done=now,
                queue=step.queue,
                batch=step.batch,
                generation=generation,
                result=step.result,
                first=step.seconds / 2,
                tokens=9,
            )
        )
        if step.slo is not None:
            pool.set_slo(SLO(e2e_s=step.slo, tpot_s=step.slo / 50.0), now, "admin:test")
        if step.tick:
            pool.tick(now, Load(queued=3, inflight=4, inflight_calls=1, app_limited=step.app_limited))
    return pool


@pytest.mark.parametrize("mode", ["merge", "gate"])
@pytest.mark.parametrize("law", sorted(LAWS))
@settings(max_examples=25, deadline=None)
@given(sequence=steps)
def test_setpoints_stay_in_bounds_and_decisions_are_deterministic(law: str, mode: str, sequence: list[Step]) -> None:
    one, two = play(law, sequence, mode), play(law, sequence, mode)
    for entry in one.decisions.since(0):
        if "max_batch_size" in entry.new:
            assert 2 <= entry.new["max_batch_size"] <= 32
            assert 0.0 <= entry.new["window_ms"] <= 100.0
    assert [e.as_dict() for e in one.decisions.since(0)] == [e.as_dict() for e in two.decisions.since(0)]
    json.dumps(one.snapshot(200.0))


@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_constant_timeouts_shrink(law: str) -> None:
    """By itself: what guards it looks whether that helped (`test_cuts_that_change_nothing_are_undone`)."""
    pool = controller(law=law, size=16, options={"guards": False})
    for second in range(60):
        now = 100.0 + second
        for _ in range(4):
            generation = pool.setpoints.generation
            pool.observe(observation(30.0, done=now, batch=16, generation=generation, result=Result.TIMEOUT))
        pool.tick(now, Load(queued=20, inflight=pool.setpoints.max_batch_size, inflight_calls=4))
    assert pool.setpoints.max_batch_size == 1


@pytest.mark.parametrize("mode", ["merge", "gate"])
@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_app_limited_never_grows(law: str, mode: str) -> None:
    assert mode in ("merge", "gate")
    pool = controller(law=law, size=8, mode="merge" if mode == "merge" else "gate")
    for second in range(120):
        now = 100.0 + second
        for index in range(5):
            done = now + index / 10
            pool.observe(observation(0.5, done=done, batch=8, generation=pool.setpoints.generation))
        pool.tick(now + 0.6, Load(queued=0, inflight=4, inflight_calls=1, app_limited=True))
    assert pool.setpoints.max_batch_size <= 8


@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_clean_samples_under_a_binding_cap_grow(law: str) -> None:
    pool = controller(law=law, size=8)
    for second in range(60):
        now = 100.0 + second
        for index in range(5):
            done = now + index / 10
            batch = pool.setpoints.max_batch_size
            pool.observe(observation(0.5, done=done, batch=batch, generation=pool.setpoints.generation))
        pool.tick(now + 0.6, Load(queued=9, inflight=8, inflight_calls=1))
    assert pool.setpoints.max_batch_size > 8


@pytest.mark.parametrize("app_limited", [False, True])
@pytest.mark.parametrize("law", sorted(set(LAWS) - {"bandit"}))
def test_healthy_traffic_is_never_held_back_to_probe(law: str, app_limited: bool) -> None:
    pool = controller(law=law, size=8)
    before, queued = 8, 0 if app_limited else 99
    for second in range(400):
        now = 100.0 + second
        size = pool.setpoints.max_batch_size
        assert size >= before, f"after {second} s"
        before = size
        batch = 3 if app_limited else size
        for index in range(4):
            done, seconds = now + index / 10, 0.5 + 0.01 * batch + 0.05 * (index == 3)
            pool.observe(observation(seconds, done=done, batch=batch, generation=pool.setpoints.generation))
        pool.tick(now + 0.6, Load(queued=queued, inflight=3, inflight_calls=1, app_limited=app_limited))


@pytest.mark.parametrize("seconds", [8.0, 30.0])
@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_nothing_is_added_while_the_promise_is_broken(law: str, seconds: float) -> None:
    """However usual it has become: an average of late answers is no target."""
    pool = controller(law=law, size=16, slo=SLO(e2e_s=4.0), options={"guards": False})
    for second in range(300):
        now = 100.0 + second
        size = pool.setpoints.max_batch_size
        for index in range(4):
            done = now + index / 10
            pool.observe(observation(seconds, done=done, batch=size, generation=pool.setpoints.generation))
        pool.tick(now + 0.6, Load(queued=99, inflight=size, inflight_calls=1))
        assert pool.setpoints.max_batch_size <= size, f"after {second} s"
    assert pool.setpoints.max_batch_size == 1


@pytest.mark.parametrize("seconds", [8.0, 30.0])
@pytest.mark.parametrize("law", sorted(set(ON_UPSTREAM_TIME) - {"bandit"}))
def test_cuts_that_change_nothing_are_undone_and_health_finds_the_size_it_left(law: str, seconds: float) -> None:
    """A slow spell that no size cures took the cap to the floor for good, and refused most while it lasted."""
    pool = controller(law=law, size=16, slo=SLO(e2e_s=4.0))
    sizes = []
    for second in range(300):
        now = 100.0 + second
        size = pool.setpoints.max_batch_size
        for index in range(8):
            done, generation = now + index / 10, pool.setpoints.generation
            pool.observe(observation(seconds, done=done, batch=size, generation=generation))
        pool.tick(now + 0.9, Load(queued=99, inflight=size, inflight_calls=1))
        sizes.append(pool.setpoints.max_batch_size)
    assert any(decision.rule.endswith(".in_vain") for decision in pool.decisions.latest(100))
    assert sum(size == 16 for size in sizes) > 200, "it stays where it was most of the time"
    for second in range(60):
        now = 400.0 + second
        size = pool.setpoints.max_batch_size
        for index in range(8):
            done, generation = now + index / 10, pool.setpoints.generation
            pool.observe(observation(1.0, done=done, batch=size, generation=generation))
        pool.tick(now + 0.9, Load(queued=99, inflight=size, inflight_calls=1))
    assert pool.setpoints.max_batch_size >= 16


@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_stale_generations_are_ignored(law: str) -> None:
    pool = controller(law=law, size=8)
    for second in range(30):
        now = 100.0 + second
        for _ in range(5):
            pool.observe(observation(60.0, done=now, generation=7))
        pool.tick(now, Load(queued=9, inflight=8, inflight_calls=1, app_limited=True))
    assert pool.setpoints.max_batch_size == 8


@pytest.mark.parametrize("law", ON_UPSTREAM_TIME)
def test_a_stalled_upstream_shrinks_before_anything_returns(law: str) -> None:
    pool = controller(law=law, size=16, slo=SLO(e2e_s=4.0))
    running = tuple(100.0 for _ in range(16))
    for second in range(1, 10):
        pool.tick(100.0 + second, Load(queued=5, inflight=16, inflight_calls=16, running=running))
    assert pool.setpoints.max_batch_size < 16
    assert "still in flight" in pool.decisions.latest(1)[0].text


@pytest.mark.parametrize("law", sorted(set(ON_UPSTREAM_TIME) - {"bandit"}))
def test_a_long_queue_alone_never_shrinks_the_batch(law: str) -> None:
    pool = controller(law=law, size=8)
    for second in range(60):
        now = 100.0 + second
        for _ in range(5):
            pool.observe(observation(2.0, done=now, queue=30.0, batch=8, generation=pool.setpoints.generation))
        pool.tick(now, Load(queued=50, inflight=8, inflight_calls=1))
    assert pool.setpoints.max_batch_size >= 8


@pytest.mark.parametrize("law", sorted(LAWS))
def test_without_a_promise_the_law_holds_and_says_why(law: str) -> None:
    pool = controller(law=law, slo=SLO())
    for second in range(30):
        now = 100.0 + second
        pool.observe(observation(50.0, done=now))
        pool.tick(now, Load(queued=5, inflight=8, inflight_calls=1))
    assert pool.setpoints.max_batch_size == 8
    assert [entry.rule for entry in pool.decisions.since(0)] == ["hold"]
    assert "promised" in pool.decisions.latest(1)[0].text


@pytest.mark.parametrize("law", sorted(LAWS))
def test_a_law_implements_the_interface(law: str) -> None:
    made = make_law(law)
    assert isinstance(made, Law)
    assert made.name == law
    json.dumps(made.state())


def test_an_unknown_law_or_option_is_named() -> None:
    with pytest.raises(ValueError, match="aimd"):
        make_law("pid")
    with pytest.raises(ValueError, match="speed"):
        make_law("aimd", {"speed": 3})
    with pytest.raises(ValueError, match="back_off"):
        make_law("aimd", {"back_off": 1.5})


@pytest.mark.parametrize("law", sorted(LAWS))
def test_every_option_is_described_and_its_default_is_the_laws_own(law: str) -> None:
    declared = {option.name: option.default for option in law_options(law) if option not in SHARED}
    signature = inspect.signature(LAWS[law]).parameters
    assert declared == {name: parameter.default for name, parameter in signature.items()}
    for option in law_options(law):
        assert option.takes(option.default), option.name
        assert option.text.endswith(".")
        make_law(law, {option.name: option.default})


@pytest.mark.parametrize(
    ("law", "options", "message"),
    [
        ("aimd", {"back_of": 0.9}, r"no option 'back_of'. Did you mean 'back_off'\? Options: back_off, headroom"),
        ("aimd", {"back_off": 0.2}, "back_off must be a number at least 0.5 and below 1, not 0.2"),
        ("deadline", {"objective": "fast"}, "objective must be one of goodput, efficiency, not 'fast'"),
        ("deadline", {"least": 2.5}, "least must be a whole number at least 2 and at most 512, not 2.5"),
        ("deadline", {"admission": "no"}, "admission must be true or false, not 'no'"),
        ("fixed", {"late_target": 0.5}, "late_target must be a number above 0 and below 0.5, not 0.5"),
        ("step", {"low": 1.5}, "0 < low < high"),
        ("gradient", {"queue": float("nan")}, "queue must be a number at least 0 and at most 1000"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(law: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_law(law, options)
