from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.simulator.arrivals import Request
from controller.simulator.engine import Engine, EnginePlant

QUIET = EnginePlant(noise=0.0, kv_tokens=10_000)


def run(engine: Engine, until: float = 1e9) -> None:
    while engine.next_event() <= until:
        engine.advance(engine.next_event())


def test_a_lone_request_takes_its_prefill_and_its_tokens() -> None:
    engine = Engine(QUIET, random.Random(0))
    sequence = engine.submit(Request(0.0, 512, 11), 0.0)
    run(engine)
    assert sequence.first_token == pytest.approx(0.045)
    assert sequence.finished == pytest.approx(0.045 + 10 * 0.008)


def test_decode_slows_with_company() -> None:
    engine = Engine(QUIET, random.Random(0))
    sequences = [engine.submit(Request(0.0, 16, 200), 0.0) for _ in range(8)]
    run(engine)
    finished = [sequence.finished for sequence in sequences]
    assert all(done is not None and 200 * 0.012 < done < 200 * 0.022 for done in finished)


def test_a_full_cache_makes_newcomers_wait_or_throws_the_newest_out() -> None:
    engine = Engine(EnginePlant(noise=0.0, kv_tokens=2_000), random.Random(0))
    sequences = [engine.submit(Request(0.0, 900, 300), 0.0) for _ in range(3)]
    run(engine)
    assert all(sequence.finished is not None for sequence in sequences)
    assert engine.preemptions > 0
    assert engine.kv_used == pytest.approx(0.0)


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.floats(0.0, 5.0), st.integers(1, 3_000), st.integers(1, 300)), min_size=1, max_size=25
    )
)
def test_every_sequence_ends_and_gives_its_memory_back(requests: list[tuple[float, int, int]]) -> None:
    engine = Engine(EnginePlant(noise=0.0, kv_tokens=4_000), random.Random(0))
    sequences = []
    for arrival, prompt, output in sorted(requests):
        while engine.next_event() <= arrival:
            engine.advance(engine.next_event())
        sequences.append(engine.submit(Request(arrival, prompt, output), arrival))
        assert engine.kv_used <= 4_000 + 3_000 + 25
    run(engine)
    assert not engine.waiting
    assert engine.next_event() == math.inf
    assert engine.kv_used == pytest.approx(0.0, abs=1e-3)
    for sequence in sequences:
        assert sequence.finished is not None
        assert sequence.generated == pytest.approx(sequence.request.output_tokens, abs=1e-3)
