"""One request's own record, from its first byte to its observation."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from controller.observation import Observation, Result
from controller.predictor.prediction import Prediction
from policies.base import Job
from proxy.trace import Trace
from proxy.wire.base import Call, Tap, WireFormat
from proxy.wire.naming import Named

__all__ = ["AffinityKey", "Ticket"]

AffinityKey: TypeAlias = bytes | tuple[int, ...]
"""What ties a request to an upstream: the value of a header, or the chained hashes of its prompt's blocks."""

_NEVER: Final = float("inf")
_CANCELLED: Final = Result.CANCELLED
_UNSENDABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Ticket:
    """What is known about one request. Whoever handles it fills it in; `observation` sums it up once.

    Times are monotonic seconds.
    """

    __slots__ = (
        "affinity",
        "arrival",
        "batch",
        "call",
        "code",
        "counted",
        "dispatched",
        "final",
        "finish_reason",
        "first_byte",
        "generation",
        "give_up",
        "hint",
        "id",
        "job",
        "klass",
        "last_byte",
        "named",
        "output_tokens",
        "prediction",
        "prompt_tokens",
        "queued",
        "reason",
        "result",
        "route",
        "streamed",
        "tap",
        "tenant",
        "trace",
        "upstream",
        "wire",
    )

    def __init__(self, id: str, arrival: float) -> None:
        self.id = id
        self.arrival = arrival
        self.route = "unknown"
        self.queued = True
        """Whether it is work that waits its turn; what does not says nothing about the upstreams' speed."""
        self.klass = "default"
        self.tenant = ""
        self.affinity: AffinityKey | None = None
        """What ties it to one upstream, where the pool routes by that."""
        self.trace: Trace | None = None
        """Its trace context, where it is traced."""
        self.wire: WireFormat | None = None
        """The protocol that it speaks, as far as that is known."""
        self.call: Call | None = None
        """What it asks, where its protocol understood that."""
        self.named: tuple[Named, ...] = ()
        """Where it names its model, if that matters."""
        self.job: Job | None = None
        self.tap: Tap | None = None
        self.give_up = _NEVER
        """When it stops waiting for its turn."""
        self.dispatched: float | None = None
        self.first_byte: float | None = None
        self.last_byte: float | None = None
        self.batch = 1
        self.generation = 0
        self.prediction: Prediction | None = None
        self.hint: int | None = None
        """Output tokens to tell upstreams that take hints."""
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.counted = False
        """Whether the upstream said how many those were."""
        self.streamed = False
        self.upstream = ""
        self.result = _CANCELLED
        self.code = 499
        self.reason = ""
        """Why it was refused; empty when it was not."""
        self.final = False
        """Whether the answer is over, so that a client that leaves now has had it."""

    def standing(self) -> bytes:
        """Return the lines that tell a caller as what it was served: class and tenant, as they counted."""
        tenant = _UNSENDABLE.sub("?", self.tenant).encode("latin-1", "replace")
        lines = b"X-Trimtab-Class: %b\r\n" % self.klass.encode("latin-1", "replace")
        return b"%bX-Trimtab-Tenant: %b\r\n" % (lines, tenant) if tenant else lines

    def start_again(self) -> None:
        """Go back to where no pool had taken it."""
        self.queued = True
        self.job = self.prediction = self.hint = self.dispatched = self.affinity = self.tap = None
        self.batch, self.upstream = 1, ""
        if self.trace is not None:
            self.trace.start_again()

    def ended(self, result: Result, code: int) -> None:
        """Take note of how it ended and which status the client saw."""
        self.result = result
        self.code = code
        self.final = True

    def left(self) -> None:
        """The client went away; that counts only while it is owed something."""
        if not self.final:
            self.result = Result.CANCELLED
            self.code = 499

    def observation(self, pool: str, done: float) -> Observation:
        """Sum it up. Token counts are the upstream's own where the tap found them."""
        tap = self.tap
        if tap is not None:
            usage = tap.usage()
            self.finish_reason = usage.finish_reason
            if usage.prompt_tokens is not None:
                self.prompt_tokens = usage.prompt_tokens
            self.counted = usage.output_tokens is not None
            self.output_tokens = tap.tokens_seen if usage.output_tokens is None else usage.output_tokens
        return Observation(
            pool=pool,
            arrival=self.arrival,
            done=done,
            result=self.result,
            generation=self.generation,
            dispatched=self.dispatched,
            first_byte=self.first_byte,
            last_byte=self.last_byte,
            batch=self.batch,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            streamed=self.streamed,
            klass=self.klass,
            tenant=self.tenant,
            upstream=self.upstream,
        )
