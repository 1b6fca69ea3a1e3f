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


@dataclass(slots=True, init=False)
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
    dispatched: float | None
    """None when the request never left the queue."""
    first_byte: float | None
    """When the first byte of the answer's body was relayed; None when there was none."""
    last_byte: float | None
    """When the last byte of the answer's body arrived; None when there was none."""
    batch: int
    """merge: items in the upstream call. gate: sequences in flight there, this one included, at dispatch."""
    prompt_tokens: int
    output_tokens: int
    """As the upstream reported it, else counted from the stream's events; 0 when unknown."""
    streamed: bool
    """Whether first_byte marks the first token, so that ttft and tpot mean something."""
    klass: str
    tenant: str
    upstream: str

    def __init__(
        self,
        pool: str,
        arrival: float,
        done: float,
        result: Result,
        generation: int,
        dispatched: float | None = None,
        first_byte: float | None = None,
        last_byte: float | None = None,
        batch: int = 1,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        streamed: bool = False,
        klass: str = "default",
        tenant: str = "",
        upstream: str = "",
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.pool = pool
        self.arrival = arrival
        self.done = done
        self.result = result
        self.generation = generation
        self.dispatched = dispatched
        self.first_byte = first_byte
        self.last_byte = last_byte
        self.batch = batch
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.streamed = streamed
        self.klass = klass
        self.tenant = tenant
        self.upstream = upstream

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
