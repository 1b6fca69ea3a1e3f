from __future__ import annotations

import random

import pytest

from controller.tune.experiment import Arm, Switchback

A, B = Arm("aimd"), Arm("deadline")


def run(rate_a: float, rate_b: float, *, late_b: float = 0.0, seed: int = 0, noise: float = 0.1) -> Switchback:
    rng = random.Random(seed)
    trial = Switchback(A, B, now=0.0, rng=random.Random(seed), most_pairs=40)
    second = 0.0
    level = 1.0
    while trial.verdict == "running":
        if int(second) % 120 == 0:
            level = rng.gauss(1.0, noise)
        rate = (rate_a if trial.arm == "a" else rate_b) * level
        for _ in range(int(rate + rng.random())):
            trial.observe(second, trial.arm == "b" and rng.random() < late_b)
        second += 1.0
        trial.tick(second)
    return trial


def test_a_clearly_better_arm_wins() -> None:
    assert run(5.0, 6.5).verdict == "b"
    assert run(6.5, 5.0).verdict == "a"


def test_equal_arms_are_rarely_told_apart() -> None:
    verdicts = [run(5.0, 5.0, seed=seed).verdict for seed in range(20)]
    assert sum(verdict != "no_difference" for verdict in verdicts) <= 3


def test_a_candidate_that_breaks_the_promise_is_stopped_at_once() -> None:
    trial = run(5.0, 9.0, late_b=0.2)
    assert trial.verdict == "harm"
    assert len(trial.differences) <= 1


def test_the_first_part_of_a_block_counts_for_nobody() -> None:
    trial = Switchback(A, B, now=0.0, rng=random.Random(0))
    trial.observe(23.0, False)
    assert trial._block.on_time == 0
    trial.observe(24.0, False)
    assert trial._block.on_time == 1


def test_each_pair_of_blocks_holds_both_arms() -> None:
    trial = Switchback(A, B, now=0.0, rng=random.Random(1))
    turns = []
    for index in range(1, 11):
        turns.append(trial.arm)
        trial.tick(120.0 * index)
    assert all({turns[i], turns[i + 1]} == {"a", "b"} for i in range(0, 10, 2))


def test_a_block_must_outlast_its_settling() -> None:
    with pytest.raises(ValueError, match="longer than"):
        Switchback(A, B, now=0.0, rng=random.Random(0), block_s=10.0, settle_s=10.0)
