from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.dispatch.memory_limit import MemoryLimit


def taught(limit: float, n: int = 300) -> MemoryLimit:
    rng = random.Random(0)
    memory = MemoryLimit()
    for index in range(n):
        tokens = rng.uniform(0.2, 1.4) * limit
        memory.observe(tokens, tokens > limit)
        if index % 5 == 0:
            memory.retune(binding=False)
    memory.retune(binding=False)
    return memory


def test_the_load_from_which_on_requests_wait_is_found() -> None:
    found = taught(60_000.0).limit_tokens
    assert found is not None
    assert found == pytest.approx(0.9 * 60_000.0, rel=0.08)


def test_without_waiting_there_is_no_limit() -> None:
    memory = MemoryLimit()
    for _ in range(200):
        memory.observe(50_000.0, False)
        memory.retune(binding=False)
    assert memory.limit_tokens is None


def test_a_few_that_waited_by_chance_are_no_limit() -> None:
    memory = MemoryLimit()
    for index in range(400):
        memory.observe(30_000.0 + 50.0 * index, index % 40 == 0)
        memory.retune(binding=False)
    assert memory.limit_tokens is None


def test_a_limit_that_binds_without_waiting_creeps_up() -> None:
    memory = taught(60_000.0)
    before = memory.limit_tokens
    assert before is not None
    for _ in range(60):
        memory.observe(0.98 * (memory.limit_tokens or 0.0), False)
        memory.retune(binding=True)
    assert memory.limit_tokens is not None
    assert memory.limit_tokens > before


@settings(max_examples=50, deadline=None)
@given(seen=st.lists(st.tuples(st.floats(0.0, 1e7), st.booleans(), st.booleans()), max_size=100))
def test_the_limit_stays_positive_and_finite(seen: list[tuple[float, bool, bool]]) -> None:
    memory = MemoryLimit()
    for tokens, waited, binding in seen:
        memory.observe(tokens, waited)
        memory.retune(binding)
    assert memory.limit_tokens is None or 0.0 < memory.limit_tokens < 1e9
