"""The one definition of an answer that is a failure although its status says it is none, whole and streamed.

Routing, metrics, the access log and the SLO all go by what is said here.
"""

from __future__ import annotations

from typing import Final

from proxy.wire.base import Call, Tap, WireFormat
from proxy.wire.faults import LARGEST_ERROR, Fault, unsound
from proxy.wire.sse import event_data, event_name

__all__ = ["NOTHING", "first_event", "judge_event", "judge_start", "judge_tap", "judge_whole", "misses_end"]

NOTHING: Final = Fault(502, b"")
"""An answer that holds nothing of what it says it is."""


def judge_whole(wire: WireFormat, call: Call, content_type: str, body: bytes) -> Fault | None:
    """Return what is wrong with a whole answer to `call`, which came with a status below 300; None when nothing is.

    That is the protocol's own error, JSON that is none, and a page for people where a program was asked.
    """
    size = len(body)
    if size > 1 and ((body[0] == 0x7B and body[size - 1] == 0x7D) or (body[0] == 0x5B and body[size - 1] == 0x5D)):
        # The usual case. This is the quickest way to look for something: `find` reads its arguments slowly.
        return wire.fault(call, body) if body.partition(b'"error"')[1] else None
    if body.find(b'"error"') >= 0 and (fault := wire.fault(call, body)) is not None:
        return fault
    kind = content_type[:32].lower()
    if kind.startswith("application/json"):
        return NOTHING if unsound(body) else None
    return NOTHING if kind.startswith("text/html") and wire.owns(call) else None


def judge_start(wire: WireFormat, call: Call, content_type: str, data: bytes) -> Fault | None:
    """Return the error that a stream begins with, `data` being what came so far; None when it begins well."""
    if data.find(b"error", 0, LARGEST_ERROR) < 0:
        return None
    if content_type[:17].lower() != "text/event-stream":
        return wire.fault(call, data.partition(b"\n")[0].strip())
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data = data.lstrip(b"\n")
    return judge_event(wire, call, data.partition(b"\n\n")[0])


def judge_event(wire: WireFormat, call: Call, event: bytes) -> Fault | None:
    """Return the error that one server-sent event, or one line of JSON, is; None when it is none."""
    data = event_data(event) or event
    fault = wire.fault(call, data)
    if fault is None and event_name(event) == b"error":
        return Fault(502, data if data is not event else b"")
    return fault


def judge_tap(wire: WireFormat, call: Call, tap: Tap) -> Fault | None:
    """Return the error that passed in a stream which `tap` has read; None when there was none."""
    for event in tap.suspects:
        fault = judge_event(wire, call, event)
        if fault is not None:
            return fault
    return None


def misses_end(tap: Tap, *, marked: bool, usual: bool, until_close: bool) -> bool:
    """Tell whether a stream that seems to be over lacks the end that its protocol gives it.

    Many servers never send the mark. So it is missed where this server has shown that it does (`marked`). Where
    others like it have (`usual`), what says the same is good enough; and where nothing but a closed connection says
    that this was all, in a stream that is the protocol's own, or is torn in the middle of a line.
    """
    if not tap.marks_end() or tap.finished():
        return False
    if marked:
        return True
    if tap.ended():
        return False
    return (usual and tap.own()) or (until_close and (tap.own() or tap.torn()))


def first_event(content_type: str, data: bytes) -> bool:
    """Tell whether `data`, the beginning of a stream, holds its whole first event."""
    if data.endswith(b"\n\n"):
        return True
    if content_type[:17].lower() != "text/event-stream":
        return data.find(b"\n") >= 0
    return data.find(b"\n\n") >= 0 or data.find(b"\r\n\r\n") >= 0 or data.find(b"\r\r") >= 0
