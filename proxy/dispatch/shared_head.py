"""The head of a call that several requests share: what is everybody's own, and nothing that is one caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from proxy.dispatch.turn import MergeTurn

__all__ = ["shared_lines"]

_REQUEST_ID: Final = b"x-request-id:"


def shared_lines(members: Sequence[MergeTurn]) -> bytes:
    """Return the header lines that all of `members` have, in the order of the first, without its request's id.

    What differs between callers (addresses, user agents, baggage, trace contexts, ids) belongs to none of the others.
    """
    first = members[0]
    lines = first.outgoing.lines
    mark = b"X-Request-Id: %b\r\n" % first.ticket.id.encode("ascii")
    at = lines.find(mark)
    if at >= 0:
        before, after = lines[:at], lines[at + len(mark) :]
        if all(
            member.outgoing.lines.startswith(before) and member.outgoing.lines.endswith(after) for member in members
        ):
            return before + after
    others = [frozenset(member.outgoing.lines.splitlines(True)) for member in members[1:]]
    kept = [
        line
        for line in lines.splitlines(True)
        if not line.lower().startswith(_REQUEST_ID) and all(line in other for other in others)
    ]
    return b"".join(kept)
