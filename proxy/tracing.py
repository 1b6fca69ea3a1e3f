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
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from controller.observation import Observation, Result
from policies import __version__
from proxy import spans
from proxy.config.errors import ConfigError, Problem
from proxy.config.model import TracingConfig

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind

    from proxy.headers import RawHeaders
    from proxy.incoming import Incoming
    from proxy.merger import Batch
    from proxy.ticket import Ticket
    from proxy.turn import MergeTurn

__all__ = ["SharedCall", "Trace", "Tracing", "exporter_for"]

_TRACEPARENT = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
_MISSING = "needs OpenTelemetry; install it with `pip install 'trimtab[otel]'`, or leave tracing.enabled out"


class Trace:
    """The context of one sampled request, and what is noted for its spans while it runs."""

    __slots__ = ("closed_by", "held_since", "parent_id", "request_id", "shared", "state", "trace_id", "upstream_id")

    def __init__(self, trace_id: int, parent_id: int | None, state: str, request_id: int, upstream_id: int) -> None:
        self.trace_id = trace_id
        self.parent_id = parent_id
        """The caller's span; None when the trace begins here."""
        self.state = state
        """The caller's tracestate."""
        self.request_id = request_id
        self.upstream_id = upstream_id
        self.start_again()

    def start_again(self) -> None:
        """Go back to where no pool had taken the request."""
        self.held_since: float | None = None
        """Since when only the batching window kept it (monotonic seconds); None where that never did."""
        self.closed_by = ""
        """What ended the wait for company; empty where there was none."""
        self.shared: SharedCall | None = None
        """The upstream call that it shared with others."""

    def let_go(self, held_since: float | None, closed_by: str) -> None:
        """Note how its wait for company ended."""
        self.held_since, self.closed_by = held_since, closed_by

    @property
    def hex(self) -> str:
        """The trace's id as it is written."""
        return f"{self.trace_id:032x}"

    def onto(self, lines: bytes) -> bytes:
        """Return field lines for the upstream in which its parent is our call, not the caller's."""
        return _onto(lines, self.trace_id, self.upstream_id)


class SharedCall:
    """One upstream call that answers several requests, as far as they are traced.

    It belongs to the trace of the first of them and links to all.
    """

    __slots__ = ("_tell", "attributes", "begun", "members", "span_id", "title")

    def __init__(
        self, tell: Callable[[SharedCall, int, str], None], span_id: int, members: tuple[Trace, ...], begun: float
    ) -> None:
        self._tell = tell
        self.span_id = span_id
        self.members = members
        self.begun = begun
        """Monotonic seconds."""
        self.title = ""
        self.attributes: spans.Attributes = {}

    @property
    def trace_id(self) -> int:
        """The trace that it belongs to."""
        return self.members[0].trace_id

    def onto(self, lines: bytes) -> bytes:
        """Return field lines for the upstream in which its parent is this call."""
        return _onto(lines, self.trace_id, self.span_id)

    def over(self, calls: int, error: str) -> None:
        """Tell its span; it took `calls` requests upstream. `error` says why nobody was answered, if nobody was."""
        self._tell(self, calls, error)


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

    def share(self, batch: Batch, members: Sequence[MergeTurn], upstream: str, now: float) -> SharedCall | None:
        """Note what goes upstream together. Returns the call that they share; None when none or one of them goes."""
        tickets = [member.ticket for member in members]
        traced = [ticket for ticket in tickets if ticket.trace is not None]
        traces = tuple([ticket.trace for ticket in traced if ticket.trace is not None])
        for trace in traces:
            trace.let_go(batch.held_since, batch.closed_by)
        if not traces or len(members) < 2:
            return None
        shared = SharedCall(self._tell_shared, self._rng.getrandbits(64) or 1, traces, now)
        shared.title = spans.title(traced[0])
        shared.attributes = {
            **spans.model(traced[0], members[0].wire.name),
            "trimtab.batch.requests": len(members),
            **spans.batch(batch.items, batch.closed_by),
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
        self, trace: Trace, inside: Span, ticket: Ticket, obs: Observation, about: spans.Attributes, error: str
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
        attributes: spans.Attributes | None = None, links: Sequence[Link] = (),
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


def _onto(lines: bytes, trace_id: int, span_id: int) -> bytes:
    kept = b"".join([line for line in lines.splitlines(True) if not line[:12].lower().startswith(b"traceparent:")])
    return b"%btraceparent: 00-%032x-%016x-01\r\n" % (kept, trace_id, span_id)


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
