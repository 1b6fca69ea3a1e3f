"""Every outcome becomes HTTP in one place, and none becomes what SDKs retry blindly."""

from __future__ import annotations

import typing

import pytest

from controller.observation import Result
from proxy import outcome as outcomes
from proxy.observe.metrics import SHED_REASONS
from proxy.outcome import (
    BadInput,
    BodyTooLarge,
    CallerLimited,
    DeadlinePassed,
    Draining,
    ExpectationFailed,
    HeadersTooLarge,
    Infeasible,
    InternalFault,
    KeeperAway,
    MemoryFull,
    NoRoute,
    NoUpstream,
    Outcome,
    OutOfConnections,
    QueueFull,
    Shed,
    SlowClient,
    Unauthorized,
    UpstreamBusy,
    UpstreamFailed,
    UpstreamTimeout,
    to_reply,
)
from proxy.wire.registry import wire_format, wire_names

ALL: list[tuple[Outcome, int, str]] = [
    (BadInput("no"), 400, "bad_request"),
    (SlowClient(), 400, "slow_body"),
    (NoRoute("m"), 404, "no_route"),
    (BodyTooLarge(5), 413, "body_too_large"),
    (ExpectationFailed(), 417, "expectation_failed"),
    (CallerLimited("10 requests a minute", 3.2), 429, "rate_limited_requests"),
    (Unauthorized(), 401, "invalid_api_key"),
    (HeadersTooLarge(), 431, "headers_too_large"),
    (InternalFault(), 500, "internal_error"),
    (UpstreamFailed("reset"), 502, "upstream_error"),
    (QueueFull(2.0), 503, "queue_full"),
    (QueueFull(2.0, "batch"), 503, "class_queue_full"),
    (Infeasible(4.0), 503, "slo_infeasible"),
    (Shed(0.1), 503, "shed_deadline"),
    (Draining(), 503, "draining"),
    (NoUpstream(9.0), 503, "no_upstream"),
    (KeeperAway(9.0), 503, "keeper_away"),
    (OutOfConnections(), 503, "out_of_connections"),
    (MemoryFull(), 503, "memory_full"),
    (UpstreamBusy(2.0), 503, "upstream_busy"),
    (DeadlinePassed(1.0), 504, "queue_timeout"),
    (UpstreamTimeout("first_byte_timeout"), 504, "upstream_timeout"),
]
REFUSALS = {429, 503, 504}


def test_what_is_counted_as_shed_is_named_as_in_the_answer() -> None:
    turned_away = {
        one.reason
        for one, status, _ in ALL
        if one.result in (Result.REFUSED, Result.SHED) and status >= 429 and status != 431
    }
    limits = {"rate_limited_requests", "rate_limited_tokens", "too_many_inflight"}
    assert set(SHED_REASONS) == turned_away | limits


def test_the_set_is_closed() -> None:
    assert {type(one) for one, _, _ in ALL} == set(typing.get_args(outcomes.Outcome))


@pytest.mark.parametrize("wire", [name for name in wire_names() if name != "auto"])
@pytest.mark.parametrize(("outcome", "status", "reason"), ALL)
def test_status_reason_id_and_body(outcome: Outcome, status: int, reason: str, wire: str) -> None:
    code, headers, body = to_reply(outcome, wire_format(wire), "req-1")
    fields = dict(headers)
    assert code == status
    assert code not in (408, 409)
    assert fields[b"X-Trimtab-Reason"] == reason.encode()
    assert fields[b"X-Request-Id"] == b"req-1"
    assert outcome.message.encode() in body.replace(b"\\u0027", b"'").replace(b'\\"', b'"') or body
    if status in REFUSALS:
        assert int(fields[b"Retry-After"]) >= 1


def test_retry_after_is_rounded_up_to_whole_seconds() -> None:
    for after, told in ((0.0, b"1"), (0.2, b"1"), (1.0, b"1"), (1.01, b"2"), (59.5, b"60")):
        _, headers, _ = to_reply(QueueFull(after), wire_format("openai"), "x")
        assert dict(headers)[b"Retry-After"] == told
