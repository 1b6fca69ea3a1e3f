"""The access log: what is written, how often, and what never is."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.observation import Observation, Result
from controller.simulator.arrivals import read_own_log
from proxy.config.model import LogConfig
from proxy.http.request_fields import RequestFields
from proxy.observe import logs
from proxy.observe.access_log import AccessLog
from proxy.request import Ticket

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.setup(LogConfig(format="json"), stream)
    yield stream
    logging.getLogger("trimtab").handlers = []


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def ticket(result: Result = Result.OK, code: int = 200, reason: str = "") -> Ticket:
    made = Ticket("id-1", 10.0)
    made.route, made.reason = "chat.completions", reason
    made.ended(result, code)
    return made


def observation(result: Result = Result.OK) -> Observation:
    return Observation("chat", 10.0, 11.5, result, 3, dispatched=10.25, first_byte=10.5, last_byte=11.5,
                       streamed=True, output_tokens=11, prompt_tokens=7, klass="batch",
                       upstream="http://a:1")  # fmt: skip


def fields(*headers: tuple[bytes, bytes]) -> RequestFields:
    return RequestFields(headers)


def test_the_simulator_plays_what_the_proxy_wrote_whatever_else_it_wrote(
    written: io.StringIO, tmp_path: Path
) -> None:
    written.write("listening on 127.0.0.1:8080\n")
    log = AccessLog(1.0)
    for index in range(3):
        logging.getLogger("trimtab.decisions").info("pool chat: moved", extra={"decision": index})
        seen = observation()
        seen.arrival = 10.0 + index
        seen.prompt_tokens = 0 if index == 2 else 7
        log.note(ticket(), fields(), seen, 11.5)
    file = tmp_path / "access.log"
    file.write_text(written.getvalue())
    played = [(r.arrival, r.prompt_tokens, r.output_tokens) for r in read_own_log(file)]
    assert played == [(0.0, 7, 11), (1.0, 7, 11), (2.0, 512, 11)]
    file.write_text("listening on 127.0.0.1:8080\n")
    with pytest.raises(ValueError, match="access log in JSON lines"):
        read_own_log(file)


def test_a_line_has_what_a_replay_needs(written: io.StringIO) -> None:
    AccessLog(1.0).note(ticket(), fields((b"TraceParent", TRACE.encode())), observation(), 11.5)
    (line,) = lines(written)
    assert line["message"] == "chat.completions 200 ok"
    wanted = {
        "request_id": "id-1",
        "traceparent": TRACE,
        "reason": "",
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


@pytest.mark.parametrize(
    ("result", "code", "reason", "shown"),
    [
        (Result.REFUSED, 503, "queue_full", "queue_full"),
        (Result.CANCELLED, 499, "", "client_gone"),
        (Result.FAILED, 502, "upstream_error", "upstream_error"),
        (Result.FAILED, 200, "", "upstream_error"),
        (Result.FAILED, 404, "", "upstream_status"),
        (Result.TIMEOUT, 200, "", "upstream_timeout"),
    ],
)
def test_every_end_has_its_reason(written: io.StringIO, result: Result, code: int, reason: str, shown: str) -> None:
    AccessLog(1.0).note(ticket(result, code, reason), fields(), observation(result), 11.5)
    assert [(line["code"], line["reason"]) for line in lines(written)] == [(code, shown)]


def test_sampling_spares_no_failure(written: io.StringIO) -> None:
    draws = iter([0.9, 0.05] * 50)
    access = AccessLog(0.1, lambda: next(draws))
    for number in range(100):
        result = Result.OK if number % 10 else Result.TIMEOUT
        access.note(ticket(result), fields(), observation(result), 11.5)
    results = [line["result"] for line in lines(written)]
    assert (results.count("timeout"), results.count("ok")) == (10, 45)


def test_refusals_before_a_pool_was_found_are_written_and_probes_are_not(written: io.StringIO) -> None:
    access = AccessLog(1.0)
    access.note(ticket(Result.REFUSED, 401, "invalid_api_key"), fields(), None, 11.0)
    access.note(ticket(), fields(), None, 11.0)
    assert [(line["pool"], line["code"], line["e2e_ms"]) for line in lines(written)] == [("", 401, 1000.0)]


@pytest.mark.parametrize(
    "value", [b"secret", b"00-" + b"G" * 32 + b"-b7ad6b7169203331-01", TRACE.encode() + b"-more"]
)
def test_what_is_no_trace_is_not_written(written: io.StringIO, value: bytes) -> None:
    AccessLog(1.0).note(ticket(), fields((b"traceparent", value)), observation(), 11.5)
    assert lines(written)[0]["traceparent"] is None


def test_it_is_off_unless_asked_for() -> None:
    assert AccessLog.of(LogConfig()) is None
    assert AccessLog.of(LogConfig(access=True)) is not None
