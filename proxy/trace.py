"""What is noted of a request that is traced while it runs: data only. Its spans are told afterwards."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Attributes", "SharedCall", "Trace"]

Attributes = dict[str, str | int | float | bool | tuple[str, ...]]
"""What a span says, as OpenTelemetry takes it."""


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
        self.attributes: Attributes = {}

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


def _onto(lines: bytes, trace_id: int, span_id: int) -> bytes:
    kept = b"".join([line for line in lines.splitlines(True) if not line[:12].lower().startswith(b"traceparent:")])
    return b"%btraceparent: 00-%032x-%016x-01\r\n" % (kept, trace_id, span_id)
