"""What became of one request, as the controller sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Observation", "Result"]


class Result(StrEnum):
    """How a request ended, in the controller's terms. Every request ends in exactly one."""

    OK = "ok"
    """Served; whether on time is for the SLO to say."""
    FAILED = "failed"
    """The upstream answered with an error of its own, or broke."""
    TIMEOUT = "timeout"
    """The upstream took longer than the pool allows. Always an SLO violation."""
    REFUSED = "refused"
    """Turned away on arrival: queue full, caller's limit, or it could not have made its deadline."""
    SHED = "shed"
    """Admitted, then dropped from the queue because it could no longer make its deadline."""
    CANCELLED = "cancelled"
    """The client went away. Says nothing about latency."""


@dataclass(slots=True)
class Observation:
    """One finished request. Times are seconds of the proxy's monotonic clock.

    Nobody changes one. That it is not declared frozen halves the cost of making it, once a request.

    `queue = dispatched - arrival` is ours, `service = done - dispatched` is the upstream's; the two are never
    mixed. `generation` names the setpoints in force at dispatch, so that stale samples are never blamed on new
    settings.
    """

    pool: str
    arrival: float
    done: float
    result: Result
    generation: int
    dispatched: float | None = None
    """None when the request never left the queue."""
    first_byte: float | None = None
    """When the first byte of the answer's body was relayed; None when there was none."""
    last_byte: float | None = None
    """When the last byte of the answer's body arrived; None when there was none."""
    batch: int = 1
    """merge: items in the upstream call. gate: sequences in flight there, this one included, at dispatch."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the upstream reported it, else counted from the stream's events; 0 when unknown."""
    streamed: bool = False
    """Whether first_byte marks the first token, so that ttft and tpot mean something."""
    klass: str = "default"
    tenant: str = ""
    upstream: str = ""

    @property
    def queue_s(self) -> float:
        """Seconds spent waiting in our queue."""
        return (self.done if self.dispatched is None else self.dispatched) - self.arrival

    @property
    def service_s(self) -> float | None:
        """Seconds from dispatch to the end of the answer; None when it was never dispatched."""
        return None if self.dispatched is None else self.done - self.dispatched

    @property
    def e2e_s(self) -> float:
        """Seconds from arrival to the end of the answer."""
        return self.done - self.arrival

    @property
    def ttft_s(self) -> float | None:
        """Seconds from arrival to the first token; None unless it was streamed and had one."""
        return self.first_byte - self.arrival if self.streamed and self.first_byte is not None else None

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds per output token after the first; None below two tokens or when not streamed."""
        if not self.streamed or self.first_byte is None or self.last_byte is None or self.output_tokens < 2:
            return None
        return (self.last_byte - self.first_byte) / (self.output_tokens - 1)
