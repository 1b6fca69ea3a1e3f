from __future__ import annotations

import json

import pytest

from controller.measure.latency import LatencyWindow, attainment
from controller.observation import Observation, Result
from controller.slo import SLO
from tests.controller.build import observation

SLO_E2E = SLO(e2e_s=1.0)


def filled(n: int, late: int) -> LatencyWindow:
    window = LatencyWindow()
    for index in range(n):
        window.add(observation(2.0 if index < late else 0.5, done=10.0), SLO_E2E)
    return window


@pytest.mark.parametrize(
    ("n", "late", "verdict"),
    [
        (298, 0, "unproven"),
        (299, 0, "met"),
        (472, 1, "unproven"),
        (473, 1, "met"),
        (35, 2, "missed"),
        (36, 2, "unproven"),
    ],
)
def test_met_and_missed_are_claimed_only_with_the_evidence(n: int, late: int, verdict: str) -> None:
    found = attainment(SLO_E2E, filled(n, late).counts(10.0))["e2e"]
    assert (found["n"], found["late"], found["verdict"]) == (n, late, verdict)


def test_every_quantile_comes_with_n_and_an_interval() -> None:
    window = LatencyWindow()
    for index in range(1000):
        window.add(observation(0.1 + index / 1000.0, done=10.0, queue=0.2), SLO_E2E)
    shown = window.quantiles(10.0)
    p99 = shown["e2e"]["p99"]
    assert shown["e2e"]["n"] == 1000
    assert p99["low_ms"] <= p99["value_ms"] <= p99["high_ms"]
    assert p99["value_ms"] == pytest.approx(1290.0, rel=0.02)
    assert shown["queue"]["p50"]["value_ms"] == pytest.approx(200.0, rel=0.02)
    json.dumps(shown)


def test_a_small_sample_shows_no_upper_bound_of_p99() -> None:
    assert filled(50, 0).quantiles(10.0)["e2e"]["p99"]["high_ms"] is None


def test_refused_and_shed_are_counted_but_are_no_latencies() -> None:
    window = LatencyWindow()
    window.add(Observation("p", 0.0, 1.0, Result.REFUSED, 0), SLO_E2E)
    window.add(Observation("p", 0.0, 9.0, Result.SHED, 0), SLO_E2E)
    counts = window.counts(9.0)
    assert (counts["refused"], counts["shed"], counts["late"]) == (1, 1, 0)
    assert window.quantiles(9.0)["e2e"]["n"] == 0


def test_a_timeout_is_late_for_every_target() -> None:
    window = LatencyWindow()
    slo = SLO(e2e_s=100.0, ttft_s=50.0)
    window.add(observation(1.0, result=Result.TIMEOUT), slo)
    counts = window.counts(100.0)
    assert (counts["late"], counts["late:e2e"], counts["late:ttft"]) == (1, 1, 1)


def test_every_request_is_measured_at_once_however_many_were_and_in_whatever_order() -> None:
    window = LatencyWindow(window_s=60.0, slices=10)
    for index in range(300):
        done = 100.0 + 30.0 * (index % 2)
        window.add(observation(done=done, service=0.5), SLO())
        assert window.sketch("service", 130.0).count == index + 1
    assert window.sketch("service", 130.0).at_ranks((297,)) == pytest.approx([0.5], rel=0.011)


def test_streamed_latencies_are_measured_from_arrival_and_per_token() -> None:
    window = LatencyWindow()
    window.add(observation(2.0, queue=1.0, first=0.5, tokens=16), SLO(ttft_s=1.0))
    shown = window.quantiles(100.0)
    assert shown["ttft"]["p50"]["value_ms"] == pytest.approx(1500.0, rel=0.01)
    assert shown["tpot"]["p50"]["value_ms"] == pytest.approx(100.0, rel=0.01)
    assert window.counts(100.0)["late:ttft"] == 1
