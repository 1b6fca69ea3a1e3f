"""Rerank as Cohere, Jina and the servers that follow them speak it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from proxy.wire.base import Call, Head, Reply, Route, Tap, WireFormat
from proxy.wire.faults import object_error, typed_error
from proxy.wire.items import merged_body, pass_on
from proxy.wire.jsonbody import load_object, model_name
from proxy.wire.ranking import read_ranking, split_ranking
from proxy.wire.tail import TailTap

__all__ = ["Rerank"]

RERANK = Route("rerank", generates=False, pure=True)


class Rerank(WireFormat):
    """The `rerank` wire format: `/v1/rerank`, `/v2/rerank`, `/rerank`, with `documents` or, as TEI has it, `texts`.

    Rankings of the same query merge, for models that score each document by itself; a model that looks at the
    whole list at once must be gated instead.
    """

    name = "rerank"
    routes = (RERANK,)

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`, under any prefix."""
        return RERANK if method == "POST" and path.endswith("/rerank") else None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object or the model no string."""
        payload = load_object(head, body)
        if payload is None:
            return Call(route, body)
        call = Call(route=route, body=body, model=model_name(payload), payload=payload)
        field = "texts" if "texts" in payload and "documents" not in payload else "documents"
        call.extra["field"] = field
        read_ranking(call, head, field)
        return call

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return the message where Cohere's clients (`message`) and Jina's (`detail`) look for it."""
        text = message if param is None else f"{param}: {message}"
        return Reply(status, orjson.dumps({"message": text, "detail": text, "code": kind}))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is vLLM's `{"error": {...}}` or TEI's `{"error": message, "error_type": ...}`."""
        return object_error(document) or typed_error(document)

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader of the answer's usage."""
        return TailTap()

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body that lists everybody's documents."""
        return merged_body(calls, calls[0].extra["field"], [call.extra["items"] for call in calls])

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Give every caller the ranking of its own documents."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        bare = body.lstrip()[:1] == b"["
        return split_ranking(calls, status, body, None if bare else "results")
