"""What rerankers have in common: one query, many documents, results by index with the best first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Reply
from proxy.wire.envelope import SERVER_FIELDS, check_shared, own_id
from proxy.wire.items import by_index, weights
from proxy.wire.jsonbody import canonical
from proxy.wire.prompt import estimate
from proxy.wire.usage import split_usage
from proxy.wire.vectors import load_reply

__all__ = ["LIMITS", "read_ranking", "split_ranking"]

_NUMBERS: Final = frozenset({int, float})
_MEMBERS: Final = frozenset({"document", "index", "relevance_score", "score", "text"})
"""What a result says of its own document; words elsewhere may be about another."""
LIMITS = ("top_n", "top_k", "return_top_n")
"""Fields that cut the list of results: with them a merged ranking is not the rankings of its members."""


def read_ranking(call: Call, head: Head, field: str) -> None:
    """Fill in the documents of a ranking and the key under which it may be merged.

    Only rankings of the same query share a call, and only where the whole list of results comes back.
    """
    payload: dict[str, Any] = call.payload
    documents = payload.get(field)
    query = payload.get("query")
    call.prompt_tokens = estimate(query) + estimate(documents)
    if type(documents) is not list or not documents:
        return
    call.items = len(documents)
    # The query is read once per document.
    call.prompt_tokens = sum(map(estimate, documents)) + estimate(query) * len(documents)
    if type(query) is not str or not query or any(payload.get(limit) is not None for limit in LIMITS):
        return
    kinds = set(map(type, documents))
    if (kinds != {str} and kinds != {dict}) or not all(documents):
        return
    call.text = query[:2000]
    call.extra["items"] = documents
    rest = canonical(payload, ("model", field))
    if rest is not None:
        call.compat_key = (call.route.name, head.target, call.model, field, kinds == {str}, rest)


def split_ranking(calls: Sequence[Call], status: int, body: bytes, member: str | None) -> list[Reply]:
    """Split a merged ranking, a bare list of results or an object with them under `member`.

    Every caller gets the results of its own documents, in the order they came (best first), renumbered. Raises
    MergeMismatch unless every document has exactly one result.
    """
    items = [call.extra["items"] for call in calls]
    envelope: dict[str, Any] = {}
    if member is None:
        try:
            results = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise MergeMismatch(f"the answer is not valid JSON: {error}") from None
    else:
        envelope = load_reply(body)
        check_shared(envelope, SERVER_FIELDS)
        results = envelope.get(member)
    for result in by_index(results, sum(map(len, items))):
        if type(result.get("relevance_score", result.get("score"))) not in _NUMBERS:
            raise MergeMismatch("a result holds no score")
        check_shared(result, _MEMBERS)
    owner = [position for position, values in enumerate(items) for _ in values]
    first = [sum(map(len, items[:position])) for position in range(len(items))]
    mine: list[list[dict[str, Any]]] = [[] for _ in items]
    for result in results:
        position = owner[result["index"]]
        result["index"] -= first[position]
        mine[position].append(result)
    if member is None:
        return [Reply(status, orjson.dumps(results)) for results in mine]
    bills = split_usage(envelope.get("usage"), weights(items))
    replies = []
    for position, (results, bill) in enumerate(zip(mine, bills, strict=True)):
        answer = {**envelope, member: results}
        if "id" in envelope:
            answer["id"] = own_id(envelope["id"], position)
        if "usage" in envelope:
            answer["usage"] = bill
        replies.append(Reply(status, orjson.dumps(answer)))
    return replies
