"""The access log: what is written, how often, and what never is."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from controller.observation import Observation, Result
from proxy import logs
from proxy.config.model import LogConfig
from proxy.hooks import NullHooks
from proxy.traffic import KEPT, Traffic


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.setup(LogConfig(format="json"), stream)
    yield stream
    logging.getLogger("trimtab").handlers = []


def observation(result: Result = Result.OK, number: int = 0) -> Observation:
    return Observation("chat", 10.0 + number, 11.5 + number, result, 3, dispatched=10.25 + number,
                       first_byte=10.5 + number, last_byte=11.5 + number, streamed=True, output_tokens=11,
                       prompt_tokens=7, klass="batch", upstream="http://a:1")  # fmt: skip


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_has_what_a_replay_needs(written: io.StringIO) -> None:
    Traffic(NullHooks(), LogConfig(access=True)).request_finished(observation(), "chat.completions", 200)
    (line,) = lines(written)
    assert line["message"] == "chat.completions 200 ok"
    wanted = {
        "pool": "chat",
        "class": "batch",
        "code": 200,
        "queue_ms": 250.0,
        "service_ms": 1250.0,
        "e2e_ms": 1500.0,
        "ttft_ms": 500.0,
        "tpot_ms": 100.0,
        "prompt_tokens": 7,
        "output_tokens": 11,
        "arrival": 10.0,
    }
    assert wanted.items() <= line.items()


def test_nothing_is_written_unless_asked_for(written: io.StringIO) -> None:
    Traffic(NullHooks(), LogConfig()).request_finished(observation(Result.FAILED), "chat.completions", 502)
    assert lines(written) == []


def test_sampling_spares_no_failure(written: io.StringIO) -> None:
    draws = iter([0.9, 0.05] * 50)
    traffic = Traffic(NullHooks(), LogConfig(access=True, access_ratio=0.1), lambda: next(draws))
    for number in range(100):
        traffic.request_finished(observation(Result.OK if number % 10 else Result.TIMEOUT), "completions", 200)
    results = [line["result"] for line in lines(written)]
    assert (results.count("timeout"), results.count("ok")) == (10, 45)


def test_the_last_requests_are_kept_in_order(written: io.StringIO) -> None:
    traffic = Traffic(NullHooks(), LogConfig())
    for number in range(KEPT + 5):
        traffic.request_finished(observation(number=number), "completions", 200)
    recent = traffic.recent("chat")
    assert (len(recent), recent[0].arrival, recent[-1].arrival) == (KEPT, 15.0, 10.0 + KEPT + 4)
    assert traffic.recent("nobody") == ()


def test_a_reload_changes_what_is_written(written: io.StringIO) -> None:
    traffic = Traffic(NullHooks(), LogConfig())
    traffic.configure(LogConfig(access=True))
    traffic.request_finished(observation(), "completions", 200)
    assert len(lines(written)) == 1
