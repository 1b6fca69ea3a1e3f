"""The moment when the last upstream goes and the one when the first comes back, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.presence import STEP_S, UNBOUNDED, WAIT_S, Presence
from tests.support.virtual_clock import VirtualClock


class Case:
    """Two upstreams, and what the presence of one says to whoever listens."""

    def __init__(self) -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        addresses = [Address.of(f"http://127.0.0.1:{port}") for port in (1, 2)]
        self.a, self.b = (Endpoint(each, ConnectionPool(loop, each, limit=1, idle_s=1.0)) for each in addresses)
        self.clock = VirtualClock()
        self.steps: list[int] = []
        self.waits = 0
        self.presence = Presence(
            (self.a, self.b), self.clock, on_step=self.steps.append, on_wait=lambda: self.waited()
        )

    def waited(self) -> None:
        self.waits += 1

    def refused(self, *endpoints: Endpoint) -> None:
        for endpoint in endpoints:
            endpoint.refused(self.clock.now())
        self.presence.look()


@pytest.fixture
def case() -> Case:
    return Case()


def test_as_long_as_one_is_there_nothing_happens(case: Case) -> None:
    case.refused(case.a)
    case.clock.advance(60.0)
    assert (case.presence.absent, case.steps, case.clock.pending) == (False, [], 0)


def test_whoever_comes_back_is_asked_by_one_and_then_by_twice_as_many(case: Case) -> None:
    case.refused(case.a, case.b)
    assert (case.presence.absent, case.steps) == (True, [0])
    case.clock.advance(4 * WAIT_S)
    assert case.waits == 4
    case.b.accepted()
    case.presence.look()
    case.clock.advance(60.0)
    assert case.steps == [0, 1, 2, 4, 8, 16, 32, 64, UNBOUNDED]
    assert case.clock.pending == 0, "and then nobody looks any more"


def test_one_that_goes_again_is_waited_for_again(case: Case) -> None:
    case.refused(case.a, case.b)
    case.a.accepted()
    case.presence.look()
    case.clock.advance(STEP_S)
    case.refused(case.a)
    assert case.steps == [0, 1, 2, 0]
    assert case.presence.since == case.clock.now()
    case.a.accepted()
    case.presence.look()
    assert case.steps[-1] == 1


def test_those_that_an_operator_takes_out_are_not_waited_for(case: Case) -> None:
    case.refused(case.a)
    case.b.draining = True
    case.presence.look()
    assert case.steps == [0], "the other may come back"
    case.a.draining = True
    case.presence.look()
    assert (case.presence.absent, case.steps[1:]) == (False, [UNBOUNDED])
