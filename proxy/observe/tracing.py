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
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from controller.observation import Observation, Result
from policies import __version__
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import TracingConfig
from proxy.observe import spans
from proxy.trace import Attributes, SharedCall, Trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind

    from proxy.http.fields import RawHeaders
    from proxy.http.incoming import Incoming
    from proxy.request import Ticket

__all__ = ["Tracing", "exporter_for"]

_TRACEPARENT = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_MISSING = "needs OpenTelemetry; install it with `pip install 'trimtab[otel]'`, or leave tracing.enabled out"


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

        self._set_clock()
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

    def share(
        self,
        tickets: Sequence[Ticket],
        items: int,
        closed_by: str,
        *,
        held_since: float | None,
        wire: str,
        upstream: str,
        now: float,
    ) -> SharedCall | None:
        """Note what goes upstream together. Returns the call that they share; None when none or one of them goes."""
        traced = [ticket for ticket in tickets if ticket.trace is not None]
        traces = tuple([ticket.trace for ticket in traced if ticket.trace is not None])
        for trace in traces:
            trace.let_go(held_since, closed_by)
        if not traces or len(tickets) < 2:
            return None
        shared = SharedCall(self._tell_shared, self._rng.getrandbits(64) or 1, traces, now)
        shared.title = spans.title(traced[0])
        shared.attributes = {
            **spans.model(traced[0], wire),
            "trimtab.batch.requests": len(tickets),
            **spans.batch(items, closed_by),
            **spans.address(upstream),
        }
        for trace in traces:
            trace.shared = shared
        return shared

    def finish(self, trace: Trace, ticket: Ticket, obs: Observation, incoming: Incoming, provider: str) -> None:
        """Tell the spans of a request that is over; `provider` is the wire format that it spoke."""
        from opentelemetry.trace import SpanKind

        self._set_clock()
        common = spans.common(ticket, obs, provider)
        bad = obs.result in (Result.FAILED, Result.TIMEOUT) or ticket.code >= 500
        error = (ticket.reason or str(ticket.code)) if bad else ""
        about = spans.server(incoming.method, incoming.path, incoming.scheme)
        if trace.parent_id is None:
            self._ids.append(trace.trace_id)
        span = self._begin(
            spans.name(incoming.method, ticket), _caller(trace), obs.arrival, trace.request_id, SpanKind.SERVER,
            {**about, **common, **spans.answer(ticket, obs)},
        )  # fmt: skip
        span.set_attribute("http.response.status_code", ticket.code)
        if ticket.queued and ticket.job is not None:
            self._tell_wait(trace, span, obs)
        if obs.dispatched is not None:
            self._tell_call(trace, span, ticket, obs, {**common, **spans.address(obs.upstream)}, error)
        self._end(span, obs.done, error)

    def _tell_wait(self, trace: Trace, inside: Span, obs: Observation) -> None:
        """Tell the time in the queue, and the part of it that was the window's."""
        about = spans.batch(obs.batch, trace.closed_by)
        queue = self._begin("queue", _within(inside), obs.arrival, attributes=about)
        end = obs.done if obs.dispatched is None else obs.dispatched
        since = trace.held_since
        if since is not None:
            self._end(self._begin("window", _within(queue), max(since, obs.arrival), attributes=about), end)
        self._end(queue, end)

    def _tell_call(
        self, trace: Trace, inside: Span, ticket: Ticket, obs: Observation, about: Attributes, error: str
    ) -> None:
        """Tell the upstream call, or the part in one that was shared, and the time to its first token."""
        from opentelemetry.trace import Link, SpanKind

        assert obs.dispatched is not None
        shared = trace.shared
        call = self._begin(
            spans.title(ticket), _within(inside), obs.dispatched, trace.upstream_id,
            SpanKind.CLIENT if shared is None else SpanKind.INTERNAL, {**about, **spans.answer(ticket, obs)},
            () if shared is None else (Link(_context(shared.trace_id, shared.span_id)),),
        )  # fmt: skip
        if obs.first_byte is not None and obs.streamed:
            self._end(self._begin("first_token", _within(call), obs.dispatched), obs.first_byte)
        elif obs.first_byte is not None:
            call.add_event("first_byte", timestamp=self._ns(obs.first_byte))
        self._end(call, max(obs.dispatched, obs.last_byte or obs.done), error)

    def _tell_shared(self, shared: SharedCall, calls: int, error: str) -> None:
        from opentelemetry.trace import Link, SpanKind

        self._set_clock()
        lead = shared.members[0]
        call = self._begin(
            shared.title, _within(_remote(_context(lead.trace_id, lead.upstream_id))), shared.begun, shared.span_id,
            SpanKind.CLIENT, {**shared.attributes, "trimtab.batch.calls": calls},
            [Link(_context(trace.trace_id, trace.upstream_id)) for trace in shared.members],
        )  # fmt: skip
        self._end(call, monotonic(), error)

    def _begin(
        self, name: str, parent: Context, at: float, span_id: int = 0, kind: SpanKind | None = None,
        attributes: Attributes | None = None, links: Sequence[Link] = (),
    ) -> Span:  # fmt: skip
        """Start a span at a monotonic time; the caller must end it. Its id is drawn where none is given."""
        from opentelemetry.trace import SpanKind

        self._ids.append(span_id or self._rng.getrandbits(64) or 1)
        return self._tracer.start_span(
            name, context=parent, kind=kind or SpanKind.INTERNAL, attributes=attributes, links=links,
            start_time=self._ns(at),
        )  # fmt: skip

    def _end(self, span: Span, at: float, error: str = "") -> None:
        from opentelemetry.trace import Status, StatusCode

        if error:
            span.set_attribute("error.type", error)
            span.set_status(Status(StatusCode.ERROR))
        span.end(self._ns(at))

    def _set_clock(self) -> None:
        """Follow the wall clock, which may be set while we run; the spans of one request must fit each other."""
        self._shift_ns = time.time_ns() - time.monotonic_ns()

    def _ns(self, at: float) -> int:
        """Return a monotonic time as nanoseconds of the wall clock."""
        return int(at * 1e9) + self._shift_ns

    def close(self) -> None:
        """Send what is left. Blocks for as long as that takes, at most some seconds."""
        self._provider.shutdown()


def _context(trace_id: int, span_id: int, state: str = "") -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags, TraceState

    found = TraceState.from_header([state]) if state else TraceState()
    return SpanContext(trace_id, span_id, True, TraceFlags(TraceFlags.SAMPLED), found)


def _remote(context: SpanContext) -> Span:
    from opentelemetry.trace import NonRecordingSpan

    return NonRecordingSpan(context)


def _within(span: Span) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import set_span_in_context

    return set_span_in_context(span, Context())


def _caller(trace: Trace) -> Context:
    """Return where a request's span belongs: under the caller's, or nowhere."""
    from opentelemetry.context import Context

    if trace.parent_id is None:
        return Context()
    return _within(_remote(_context(trace.trace_id, trace.parent_id, trace.state)))
