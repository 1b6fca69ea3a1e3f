"""Every way in which a request can end without its upstream's answer, and the one place that words them in HTTP.

Codes: 401 no valid key; 429 the caller's own limit; 503 we are saturated, draining, without an upstream, or the
SLO cannot be kept now; 504 a deadline passed; 502 the upstream failed before a byte; 499 the client went away
(log only); 4xx the caller's mistake. Never 408 or 409: SDKs retry those blindly.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import formatdate
from math import ceil
from typing import ClassVar, TypeAlias

from controller.observation import Result
from proxy.wire.base import Reply, WireFormat

__all__ = [
    "BadInput", "BodyTooLarge", "CallerLimited", "DeadlinePassed", "Draining", "ExpectationFailed",
    "HeadersTooLarge", "Infeasible", "InternalFault", "KeeperAway", "MemoryFull", "NoRoute", "NoUpstream",
    "OutOfConnections", "Outcome", "QueueFull", "Refused", "Shed", "SlowClient", "Unauthorized", "UpstreamBusy",
    "UpstreamFailed", "UpstreamTimeout", "to_reply",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Outcome:
    status: ClassVar[int]
    result: ClassVar[Result] = Result.REFUSED
    """Unless a class says otherwise, nothing was begun."""

    @property
    def reason(self) -> str:
        """The machine-readable reason, from a bounded set: header and metric label."""
        raise NotImplementedError

    @property
    def message(self) -> str:
        """One sentence for people."""
        raise NotImplementedError

    @property
    def retry_after_s(self) -> float | None:
        """When trying again is expected to help; None when it never is."""
        return None

    @property
    def param(self) -> str | None:
        """The field at fault, where there is one."""
        return None


@dataclass(frozen=True, slots=True)
class _Passing(_Outcome):
    """Something that will be over: `after_s` says when trying again is expected to help."""

    status: ClassVar[int] = 503
    after_s: float = 1.0

    @property
    def retry_after_s(self) -> float:
        """When the queue, the backlog or the upstream's pause is expected to be over."""
        return self.after_s


@dataclass(frozen=True, slots=True)
class BadInput(_Outcome):
    """The request is malformed."""

    status: ClassVar[int] = 400
    text: str
    field: str | None = None
    code: str = "bad_request"

    @property
    def reason(self) -> str:
        """Always `bad_request`; the finer code goes into the body."""
        return "bad_request"

    @property
    def message(self) -> str:
        """What was wrong with it."""
        return self.text

    @property
    def param(self) -> str | None:
        """The field at fault."""
        return self.field


@dataclass(frozen=True, slots=True)
class BodyTooLarge(_Outcome):
    """The body exceeds the limit."""

    status: ClassVar[int] = 413
    limit: int
    reason = "body_too_large"

    @property
    def message(self) -> str:
        """Names the limit."""
        return f"The request body is larger than {self.limit} bytes."


@dataclass(frozen=True, slots=True)
class HeadersTooLarge(_Outcome):
    """The header section exceeds a limit."""

    status: ClassVar[int] = 431
    reason = "headers_too_large"
    message = "The request's header section is too large."


@dataclass(frozen=True, slots=True)
class ExpectationFailed(_Outcome):
    """Expect names something other than 100-continue."""

    status: ClassVar[int] = 417
    reason = "expectation_failed"
    message = "The only expectation understood is 100-continue."


@dataclass(frozen=True, slots=True)
class SlowClient(_Outcome):
    """The body did not come in time. Not 408, which clients retry."""

    status: ClassVar[int] = 400
    reason = "slow_body"
    message = "The request body did not arrive in time."


@dataclass(frozen=True, slots=True)
class Unauthorized(_Outcome):
    """API keys are required, and none that is known came. Does not say whether one came at all."""

    status: ClassVar[int] = 401
    reason = "invalid_api_key"
    message = "A valid API key is required, as a bearer token or in x-api-key."


@dataclass(frozen=True, slots=True)
class NoRoute(_Outcome):
    """No pool takes this path and model."""

    status: ClassVar[int] = 404
    model: str = ""
    path: str = ""
    known: str = ""
    """What would be taken, in words."""
    unnamed: bool = False
    """Whether a model had to be named and none was."""
    reason = "no_route"

    @property
    def message(self) -> str:
        """Names what did not match, and what would."""
        if self.unnamed:
            text = "The request names no model, and pools are told apart by that."
        elif self.model:
            text = f"No pool serves the model {self.model[:100]!r}."
        else:
            text = f"No pool serves the path {self.path[:100]!r}." if self.path else "No pool serves this path."
        return f"{text} {self.known}" if self.known else text

    @property
    def param(self) -> str | None:
        """The model, when that is what did not match."""
        return "model" if self.model else None


@dataclass(frozen=True, slots=True)
class CallerLimited(_Outcome):
    """The caller used up a limit of its own."""

    status: ClassVar[int] = 429
    limit: str
    after_s: float = 1.0
    why: str = "rate_limited_requests"

    @property
    def reason(self) -> str:
        """`rate_limited_requests`, `rate_limited_tokens` or `too_many_inflight`."""
        return self.why

    @property
    def message(self) -> str:
        """Names the limit."""
        return f"Your limit of {self.limit} is used up."

    @property
    def retry_after_s(self) -> float:
        """When the limit refills."""
        return self.after_s


@dataclass(frozen=True, slots=True)
class QueueFull(_Passing):
    """No more may wait."""

    klass: str | None = None
    """The class whose own bound it was; None for the whole queue's."""

    @property
    def reason(self) -> str:
        """`queue_full` or `class_queue_full`."""
        return "queue_full" if self.klass is None else "class_queue_full"

    @property
    def message(self) -> str:
        """Says whose bound it was."""
        whose = "The queue" if self.klass is None else f"The queue of class {self.klass!r}"
        return f"{whose} is full."


@dataclass(frozen=True, slots=True)
class Infeasible(_Passing):
    """It could not finish inside its deadline, so it is not started."""

    why: str = "slo_infeasible"
    message = "The request cannot finish inside its latency target at the present load."

    @property
    def reason(self) -> str:
        """The controller's reason, `slo_infeasible` as a rule."""
        return self.why


@dataclass(frozen=True, slots=True)
class Shed(_Passing):
    """It was admitted, but can no longer make its deadline."""

    result: ClassVar[Result] = Result.SHED
    reason = "shed_deadline"
    message = "The request waited too long to finish inside its latency target."


@dataclass(frozen=True, slots=True)
class Draining(_Passing):
    """The proxy is going away."""

    reason = "draining"
    message = "The proxy is shutting down."


@dataclass(frozen=True, slots=True)
class NoUpstream(_Passing):
    """No upstream may be asked now."""

    reason = "no_upstream"
    message = "No inference server is available for this request."


@dataclass(frozen=True, slots=True)
class KeeperAway(_Passing):
    """The upstream that keeps what the request refers to may not be asked now, and nobody else knows it."""

    reason = "keeper_away"
    message = "The inference server that keeps what this request refers to is away, and no other one knows it."


@dataclass(frozen=True, slots=True)
class OutOfConnections(_Passing):
    """This process may open no more files, so no connection to an upstream can be made."""

    reason = "out_of_connections"
    message = "The proxy can open no more connections."


@dataclass(frozen=True, slots=True)
class MemoryFull(_Passing):
    """The bodies of all requests together take as much memory as they may."""

    reason = "memory_full"
    message = "The proxy holds as many bytes of requests as it may."


@dataclass(frozen=True, slots=True)
class UpstreamBusy(_Passing):
    """The upstream said 429 or 503, and its answer was given up for another pool's, which is gone."""

    result: ClassVar[Result] = Result.FAILED
    reason = "upstream_busy"
    message = "The inference server is overloaded."


@dataclass(frozen=True, slots=True)
class DeadlinePassed(_Passing):
    """The deadline passed while the request was queued."""

    status: ClassVar[int] = 504
    result: ClassVar[Result] = Result.SHED
    reason = "queue_timeout"
    message = "The request's deadline passed while it was queued."


@dataclass(frozen=True, slots=True)
class UpstreamTimeout(_Outcome):
    """The upstream gave no answer in time."""

    status: ClassVar[int] = 504
    result: ClassVar[Result] = Result.TIMEOUT
    step: str
    reason = "upstream_timeout"
    retry_after_s = 1.0

    @property
    def message(self) -> str:
        """Names the step that took too long."""
        return f"The inference server did not answer in time ({self.step})."


@dataclass(frozen=True, slots=True)
class UpstreamFailed(_Outcome):
    """The upstream failed before a byte of its answer was passed on."""

    status: ClassVar[int] = 502
    result: ClassVar[Result] = Result.FAILED
    step: str
    reason = "upstream_error"

    @property
    def message(self) -> str:
        """Names the step that broke."""
        return f"The inference server failed ({self.step})."


@dataclass(frozen=True, slots=True)
class InternalFault(_Outcome):
    """We failed. Always a bug."""

    status: ClassVar[int] = 500
    result: ClassVar[Result] = Result.FAILED
    reason = "internal_error"
    message = "The proxy failed on this request."


Outcome: TypeAlias = (
    BadInput
    | BodyTooLarge
    | CallerLimited
    | DeadlinePassed
    | Draining
    | ExpectationFailed
    | HeadersTooLarge
    | Infeasible
    | InternalFault
    | KeeperAway
    | MemoryFull
    | NoRoute
    | NoUpstream
    | OutOfConnections
    | QueueFull
    | Shed
    | SlowClient
    | Unauthorized
    | UpstreamBusy
    | UpstreamFailed
    | UpstreamTimeout
)


class Refused(Exception):
    """Carries an outcome to the one place that answers with it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def to_reply(outcome: Outcome, wire: WireFormat, request_id: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, header fields and body of the answer to an outcome, in the caller's own protocol.

    Every refusal carries Retry-After in whole seconds, at least 1, and every answer its reason and request id.
    """
    reply: Reply = wire.error(outcome.status, outcome.reason, outcome.message, param=outcome.param)
    headers = [
        (b"Content-Type", reply.content_type.encode("latin-1")),
        (b"Date", formatdate(usegmt=True).encode("ascii")),
        (b"X-Request-Id", request_id.encode("latin-1")),
        (b"X-Trimtab-Reason", outcome.reason.encode("latin-1")),
    ]
    if outcome.status == 401:
        headers.append((b"WWW-Authenticate", b"Bearer"))
    after = outcome.retry_after_s
    if after is not None:
        headers.append((b"Retry-After", b"%d" % max(1, ceil(after))))
    return reply.status, headers, reply.body
