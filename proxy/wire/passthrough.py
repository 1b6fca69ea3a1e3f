"""What no protocol claims: relayed as it comes."""

from __future__ import annotations

from typing import Final

import orjson

from proxy.wire.base import Reply, Route, WireFormat

__all__ = ["OPAQUE", "RELAY", "UNREAD", "Opaque", "Passthrough", "is_idle"]

RELAY: Final = Route("relay", inspect=False, queued=False, generates=False)
"""Requests that are passed on without being read or queued."""

OPAQUE: Final = Route("opaque", inspect=False, generates=False)
"""POSTs that no format claims: passed on unread, and work that waits its turn where a pool bounds that."""

UNREAD: Final = Route("unread", inspect=False, generates=False)
"""What a claimed path was sent with a body that is not its protocol's: passed on as it came, under this name."""

_IDLE: Final = frozenset(
    {
        "/abort", "/api/blobs", "/api/copy", "/api/create", "/api/delete", "/api/pull", "/api/push", "/api/show",
        "/apply-template", "/decode", "/detokenize", "/flush_cache", "/get_tokenizer_info", "/load_lora_adapter",
        "/lora-adapters", "/props", "/reset_mm_cache", "/reset_prefix_cache", "/sleep", "/tokenize",
        "/unload_lora_adapter", "/v1/detokenize", "/v1/files", "/v1/load_lora_adapter", "/v1/tokenize",
        "/v1/unload_lora_adapter", "/v2/repository/index", "/wake_up",
    }
)  # fmt: skip
"""POSTs that are no work for an accelerator, spelled exactly: anything near them is taken for work."""


def is_idle(path: str) -> bool:
    """Tell whether a POST to `path` is known to be no work."""
    return path in _IDLE or path.startswith("/v2/repository/models/")


class Passthrough(WireFormat):
    """The `passthrough` wire format: claims nothing, merges nothing, and answers its own errors in plain JSON."""

    name = "passthrough"
    routes = (RELAY, OPAQUE, UNREAD)

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message, "reason": kind}`."""
        answer = {"error": message, "reason": kind}
        if param is not None:
            answer["param"] = param
        return Reply(status, orjson.dumps(answer))


class Opaque(Passthrough):
    """The `opaque` wire format: every POST is work, whatever its path and body."""

    name = "opaque"

    def match(self, method: str, path: str) -> Route | None:
        """Return `opaque` for any POST."""
        return OPAQUE if method == "POST" else None
