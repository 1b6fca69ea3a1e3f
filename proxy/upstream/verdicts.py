"""What answers are in the eyes of their protocols, whatever their status says."""

from __future__ import annotations

from typing import Final

from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Exchange
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Tap
from proxy.wire.faults import Fault
from proxy.wire.judging import NOTHING, judge_start, judge_tap, judge_whole, misses_end

__all__ = ["Verdicts"]

_MOST_MARKS: Final = 256


class Verdicts:
    """Judges the answers of one pool's upstreams, and remembers whose streams end with their protocol's mark."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: set[str] = set()
        """Routes and models whose streams some upstream has ended with a mark; a bounded number."""

    def look(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing) -> Fault | None:
        """Return the failure that an answer of status 200 is, as far as it has come; None when it is none."""
        call, wire, fields = outgoing.call, outgoing.wire, exchange.fields
        if exchange.looked_at:
            return exchange.told
        if call is None or wire is None or fields.encoded or exchange.bodiless:
            return None
        exchange.looked_at = True
        if not fields.is_event_stream:
            if exchange.ended:
                exchange.told = judge_whole(wire, call, fields.content_type, exchange.peek())
            return exchange.told
        data = exchange.peek()
        fault = judge_start(wire, call, fields.content_type, data)
        if fault is None and exchange.ended:
            if not data:
                fault = NOTHING
            else:
                tap = exchange.tap = wire.tap(call, fields.content_type)
                tap.feed(data)
                fault = self.ends_badly(endpoint, exchange, outgoing, tap)
        exchange.told = fault
        return fault

    def ends_badly(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing, tap: Tap) -> Fault | None:
        """Return what was wrong with a stream of events that `tap` has read to its end."""
        call, wire = outgoing.call, outgoing.wire
        assert call is not None
        assert wire is not None
        if not exchange.until_close:
            tap.over()
        if tap.suspects and (fault := judge_tap(wire, call, tap)) is not None:
            return fault
        marks, mark = endpoint.marks, outgoing.mark()
        if tap.finished():
            for known in (marks, self._marks):
                if mark not in known and len(known) < _MOST_MARKS:
                    known.add(mark)
            return None
        usual = mark in self._marks
        if misses_end(tap, marked=mark in marks, usual=usual, until_close=exchange.until_close):
            return NOTHING
        return None

    def tell(self, exchange: Exchange, outgoing: Outgoing, fault: Fault) -> None:
        """Let an answer that is a failure have the status of one, in the upstream's own words where it has some."""
        body, wire = fault.body, outgoing.wire
        assert wire is not None
        if body[:1] != b"{":
            text = body[:500].decode("utf-8", "replace") or "The inference server's answer is empty or incomplete."
            body = wire.error(fault.status, "upstream_error", text).body
        exchange.become(fault, body)
