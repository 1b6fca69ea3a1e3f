"""What is remembered of the last requests."""

from __future__ import annotations

from controller.observation import Observation, Result
from proxy.observe.hooks import NullHooks
from proxy.observe.traffic import KEPT, Traffic


def test_the_last_requests_are_kept_in_order() -> None:
    traffic = Traffic(NullHooks())
    for number in range(KEPT + 5):
        traffic.request_finished(Observation("chat", 10.0 + number, 11.0 + number, Result.OK, 0), "completions", 200)
    recent = traffic.recent("chat")
    assert (len(recent), recent[0].arrival, recent[-1].arrival) == (KEPT, 15.0, 10.0 + KEPT + 4)
    assert traffic.recent("nobody") == ()
