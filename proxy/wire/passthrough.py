"""What no protocol claims: relayed as it comes."""

from __future__ import annotations

import orjson

from proxy.wire.base import Reply, Route, WireFormat

__all__ = ["RELAY", "Passthrough"]

RELAY = Route("relay", inspect=False, queued=False, generates=False)
"""Requests that are passed on without being read or queued."""


class Passthrough(WireFormat):
    """The `passthrough` wire format: claims nothing, merges nothing, and answers its own errors in plain JSON."""

    name = "passthrough"
    routes = (RELAY,)

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message, "reason": kind}`."""
        answer = {"error": message, "reason": kind}
        if param is not None:
            answer["param"] = param
        return Reply(status, orjson.dumps(answer))
