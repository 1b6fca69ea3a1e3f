"""Text Embeddings Inference's own API: embed, rerank, predict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Reply, Route, WireFormat
from proxy.wire.faults import object_error, typed_error
from proxy.wire.items import merged_body, pass_on, read_items
from proxy.wire.jsonbody import canonical, load_object
from proxy.wire.prompt import estimate
from proxy.wire.ranking import read_ranking, split_ranking
from proxy.wire.tgi import huggingface_error
from proxy.wire.vectors import load_rows

__all__ = ["TEI"]

EMBED: Final = Route("tei.embed", generates=False, auto_merge=True, pure=True)
RERANK: Final = Route("tei.rerank", generates=False, auto_merge=True, pure=True)
PREDICT: Final = Route("tei.predict", generates=False, auto_merge=True, pure=True)

_FIELDS = frozenset({b"x-compute-type", b"x-inference-time"})
_POST = {"/embed": EMBED, "/embed_all": EMBED, "/embed_sparse": EMBED, "/rerank": RERANK, "/predict": PREDICT}


class TEI(WireFormat):
    """The `tei` wire format. Embeddings and classifications merge; rankings merge where the query is the same.

    Results come in the order of the inputs. Requests for one classification get a bare result back and lists get
    lists, whatever they were merged with.
    """

    name = "tei"
    routes = (
        EMBED,
        RERANK,
        PREDICT,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`."""
        return _POST.get(path) if method == "POST" else None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object."""
        payload = load_object(head, body)
        if payload is None:
            return Call(route, body)
        call = Call(route=route, body=body, payload=payload)
        if route is RERANK:
            read_ranking(call, head, "texts")
            return call
        value = payload.get("inputs")
        found = _read_texts(value) if route is EMBED else _read_sequences(value)
        if found is None:
            call.items = max(1, len(value)) if type(value) is list else 1
            call.prompt_tokens = estimate(value)
            return call
        kind, items, bare = found
        call.items = len(items)
        call.prompt_tokens = sum(map(estimate, items))
        call.extra.update(items=items, bare=bare, flat=head.path == "/embed")
        rest = canonical(payload, ("inputs",))
        if rest is not None:
            call.compat_key = (route.name, head.target, kind, rest)
        return call

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message, "error_type": ...}`."""
        return Reply(status, huggingface_error(status, message, param))

    def recognises(self, call: Call, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it has the fields that this server adds to its answers, and a list with one entry an input."""
        names = {name.lower() for name, _ in headers}
        if call.route is not EMBED or not names >= _FIELDS:
            return False
        try:
            return len(load_rows(body, alike=call.extra["flat"])[1]) == call.items
        except MergeMismatch:
            return False

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": message, "error_type": ...}`; others serve these paths, too."""
        return typed_error(document) or object_error(document)

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body that lists everybody's inputs."""
        field = "texts" if calls[0].route is RERANK else "inputs"
        return merged_body(calls, field, [call.extra["items"] for call in calls])

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Deal out the results, which come in the order of the inputs; rankings by index."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        if calls[0].route is RERANK:
            return split_ranking(calls, status, body, None)
        _, rows = load_rows(body, alike=calls[0].extra["flat"])
        total = sum(call.items for call in calls)
        if len(rows) != total:
            raise MergeMismatch(f"{total} inputs were sent, {len(rows)} results came back")
        replies, start = [], 0
        for call in calls:
            mine = rows[start : start + call.items]
            start += call.items
            answer = mine[0] if call.extra["bare"] else mine
            replies.append(Reply(status, orjson.dumps(answer)))
        return replies


def _read_texts(value: Any) -> tuple[str, list[Any], bool] | None:
    """Read the inputs of an embedding; the answer is a list even for a single one."""
    items = read_items(value)
    return None if items is None else (items.kind, items.values, False)


def _read_sequences(value: Any) -> tuple[str, list[Any], bool] | None:
    """Read the inputs of a classification: a text, a pair of texts, or a list of lists of one or two texts."""
    if type(value) is str:
        return ("sequences", [[value]], True) if value else None
    if type(value) is not list or not value:
        return None
    if set(map(type, value)) == {str}:
        return ("sequences", [value], True) if len(value) <= 2 and all(value) else None
    for item in value:
        if type(item) is not list or not 1 <= len(item) <= 2 or not all(type(text) is str and text for text in item):
            return None
    return "sequences", value, False
