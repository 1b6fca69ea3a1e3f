"""OpenTelemetry traces: what became of a request, told once it is over. Needs the extra `otel`.

While a request runs, only its trace context exists: two random numbers, so that the upstream's own spans find their
parent. The spans are made afterwards from the times that the request's ticket has anyway. Without `tracing.enabled`
nothing here is imported; requests that are not sampled pay for the draw alone.

Names follow the GenAI semantic conventions (OpenTelemetry, in development) and W3C Trace Context.
"""

from __future__ import annotations

import random
import re
import time
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from controller.observation import Observation, Result
from policies import __version__
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import TracingConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from proxy.headers import RawHeaders
    from proxy.ticket import Ticket

__all__ = ["Trace", "Tracing", "exporter_for"]

_TRACEPARENT = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_OPERATIONS = {"chat.completions": "chat", "messages": "chat", "completions": "text_completion",
               "embeddings": "embeddings", "responses": "chat"}  # fmt: skip
_MISSING = "needs OpenTelemetry; install it with `pip install 'trimtab[otel]'`, or leave tracing.enabled out"


class Trace(NamedTuple):
    """The context of one sampled request."""

    trace_id: int
    parent_id: int | None
    """The caller's span; None when the trace begins here."""
    state: str
    """The caller's tracestate."""
    request_id: int
    upstream_id: int

    @property
    def hex(self) -> str:
        """The trace's id as it is written."""
        return f"{self.trace_id:032x}"

    def onto(self, lines: bytes) -> bytes:
        """Return field lines for the upstream in which its parent is our call, not the caller's."""
        kept = b"".join(
            [line for line in lines.splitlines(True) if not line[:12].lower().startswith(b"traceparent:")]
        )
        return b"%btraceparent: 00-%032x-%016x-01\r\n" % (kept, self.trace_id, self.upstream_id)


def exporter_for(config: TracingConfig) -> SpanExporter:
    """Return what sends spans to the collector over OTLP. Raises ConfigError when the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError([Problem("", "tracing.enabled", _MISSING)]) from None
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    return OTLPSpanExporter(endpoint=config.endpoint, headers=headers, timeout=10)


class Tracing:
    """Draws contexts and tells spans. `rng` draws; `batch` False exports each span at once, for tests."""

    def __init__(
        self, config: TracingConfig, exporter: SpanExporter, *, rng: random.Random | None = None, batch: bool = True
    ) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.id_generator import IdGenerator

        ids = self._ids = deque[int]()

        class Given(IdGenerator):
            """Hands out the numbers that the upstream was told."""

            def generate_span_id(self) -> int:
                return ids.popleft()

            def generate_trace_id(self) -> int:
                return ids.popleft()

        self._ratio = config.ratio
        self._rng = rng or random.SystemRandom()
        resource = Resource.create({"service.name": config.service_name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, id_generator=Given())
        processor = BatchSpanProcessor(exporter) if batch else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("trimtab", __version__)

    def begin(self, headers: RawHeaders) -> Trace | None:
        """Return the context of a request; None when it is not sampled. The caller's own decision counts first."""
        parent: bytes | None = None
        state: list[str] = []
        for name, value in headers:
            lowered = name.lower()
            if lowered == b"traceparent":
                parent = value.strip()
            elif lowered == b"tracestate":
                state.append(value.decode("latin-1").strip())
        found = None if parent is None else _TRACEPARENT.match(parent)
        draw = self._rng.getrandbits
        if found is None or not int(found[1], 16) or not int(found[2], 16):
            if self._rng.random() >= self._ratio:
                return None
            return Trace(draw(128) or 1, None, "", draw(64) or 1, draw(64) or 1)
        if not int(found[3], 16) & 1:
            return None
        return Trace(int(found[1], 16), int(found[2], 16), ",".join(state), draw(64) or 1, draw(64) or 1)

    def finish(self, trace: Trace, ticket: Ticket, obs: Observation, method: str, path: str) -> None:
        """Tell the spans of a request that is over."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        shift = time.time() - monotonic()

        def ns(at: float) -> int:
            return int((at + shift) * 1e9)

        if trace.parent_id is None:
            self._ids.append(trace.trace_id)
        self._ids.append(trace.request_id)
        span = self._tracer.start_span(
            f"{method} {ticket.route}", context=_parent(trace), kind=SpanKind.SERVER, start_time=ns(obs.arrival),
            attributes={"http.request.method": method, "url.path": path, **_common(ticket, obs)},
        )  # fmt: skip
        span.set_attribute("http.response.status_code", ticket.code)
        inside = set_span_in_context(span)
        bad = obs.result in (Result.FAILED, Result.TIMEOUT) or ticket.code >= 500
        if ticket.queued and ticket.job is not None:
            self._ids.append(self._rng.getrandbits(64) or 1)
            queue = self._tracer.start_span("queue", context=inside, start_time=ns(obs.arrival))
            queue.set_attribute("trimtab.batch.size", obs.batch)
            queue.end(ns(obs.done if obs.dispatched is None else obs.dispatched))
        if obs.dispatched is not None:
            self._ids.append(trace.upstream_id)
            call = self._tracer.start_span(
                _title(ticket), context=inside, kind=SpanKind.CLIENT, start_time=ns(obs.dispatched),
                attributes={**_common(ticket, obs), **_address(obs.upstream)},
            )  # fmt: skip
            if obs.first_byte is not None:
                call.add_event("first_token" if obs.streamed else "first_byte", timestamp=ns(obs.first_byte))
            if bad:
                call.set_status(Status(StatusCode.ERROR))
            call.end(ns(max(obs.dispatched, obs.last_byte or obs.done)))
        if bad:
            span.set_attribute("error.type", ticket.reason or str(ticket.code))
            span.set_status(Status(StatusCode.ERROR))
        span.end(ns(obs.done))

    def close(self) -> None:
        """Send what is left. Blocks for as long as that takes, at most some seconds."""
        self._provider.shutdown()


def _parent(trace: Trace) -> Any:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

    if trace.parent_id is None:
        return Context()
    state = TraceState.from_header([trace.state]) if trace.state else TraceState()
    caller = SpanContext(trace.trace_id, trace.parent_id, True, TraceFlags(TraceFlags.SAMPLED), state)
    return set_span_in_context(NonRecordingSpan(caller))


def _title(ticket: Ticket) -> str:
    """Return `{operation} {model}`, as the conventions name such spans."""
    model = ticket.call.model if ticket.call is not None else ""
    return f"{_OPERATIONS.get(ticket.route, ticket.route)} {model}".rstrip()


def _common(ticket: Ticket, obs: Observation) -> dict[str, str | int | float]:
    found: dict[str, str | int | float | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(ticket.route),
        "gen_ai.usage.input_tokens": obs.prompt_tokens or None,
        "gen_ai.usage.output_tokens": obs.output_tokens or None,
        "trimtab.request.id": ticket.id,
        "trimtab.pool": obs.pool or None,
        "trimtab.class": obs.klass,
        "trimtab.outcome": obs.result.value,
        "trimtab.reason": ticket.reason or None,
    }
    if ticket.call is not None:
        found["gen_ai.request.model"] = ticket.call.model or None
        found["gen_ai.request.max_tokens"] = ticket.call.max_tokens
    return {key: value for key, value in found.items() if value is not None}


def _address(url: str) -> dict[str, str | int]:
    parts = urlsplit(url)
    found: dict[str, str | int] = {}
    if parts.hostname:
        found["server.address"] = parts.hostname
    if parts.port:
        found["server.port"] = parts.port
    return found
