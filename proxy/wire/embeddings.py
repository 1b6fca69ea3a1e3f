"""One embeddings answer, cut into everybody's own without reading its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, MergeMismatch, Reply
from proxy.wire.envelope import SERVER_FIELDS, check_shared, own_id
from proxy.wire.items import by_index
from proxy.wire.usage import split_usage
from proxy.wire.vectors import load_reply

__all__ = ["cut_vectors", "is_embeddings", "split_embeddings"]

_MEMBERS: Final = frozenset({"index", "embedding", "object"})
_GAP: Final = orjson.Fragment(b"\0")
"""Marks where something is to be filled in: text never brings a NUL along, for JSON escapes it."""


def split_embeddings(calls: Sequence[Call], status: int, body: bytes) -> list[Reply]:
    """Return each call's part of an answer: its results, counted from 0, and its share of the usage.

    What all parts have in common is written once. Raises MergeMismatch unless there is one result for every item.
    """
    envelope, vectors = cut_vectors(body)
    check_shared(envelope, SERVER_FIELDS)
    results = by_index(envelope.get("data"), sum([call.items for call in calls]))
    billed = "usage" in envelope
    bills = split_usage(envelope.pop("usage", None), [call.prompt_tokens for call in calls])
    envelope["data"] = _GAP
    if billed:
        envelope["usage"] = _GAP
    form = orjson.dumps(envelope).split(b"\0")
    rows = _Rows(results, vectors)
    before, after, end = form[0] + b"[", b"]" + form[1], form[-1]
    replies: list[Reply] = []
    first = 0
    minted = envelope.get("id")
    for position, call in enumerate(calls):
        if minted is not None:
            envelope["id"] = own_id(minted, position)
            form = orjson.dumps(envelope).split(b"\0")
            before, after, end = form[0] + b"[", b"]" + form[1], form[-1]
        count = call.items
        pieces = [before]
        for index in range(count):
            rows.write(pieces, results[first + index], index)
        first += count
        pieces.append(after)
        if billed:
            pieces += (orjson.dumps(bills[position]), end)
        replies.append(Reply(status, b"".join(pieces)))
    return replies


def is_embeddings(body: bytes, count: int) -> bool:
    """Whether an answer is OpenAI's list of `count` embeddings, in its own words."""
    try:
        envelope, _ = cut_vectors(body)
        results = by_index(envelope.get("data"), count)
    except MergeMismatch:
        return False
    return envelope.get("object") == "list" and all(
        result.get("object") == "embedding" and result.get("embedding") is not None for result in results
    )


def _check(result: dict[str, Any]) -> None:
    """Raise MergeMismatch where a result says that it is something else, or more than an embedding says."""
    if result.get("object", "embedding") != "embedding":
        raise MergeMismatch("a result is no embedding")
    check_shared(result, _MEMBERS)


def _kind(embedding: Any, vectors: list[bytes]) -> str:
    """Return what an embedding is: a number stands for that one of `vectors`. Raises MergeMismatch for none."""
    kind = type(embedding)
    if kind is int and vectors:
        inside = vectors[embedding]
        return f"a vector of {inside.count(b',') + 1 if inside.strip() else 0}"
    if kind is str:
        return f"text of {len(embedding)}"
    if kind is list and embedding:
        return "vectors" if type(embedding[0]) is list else f"a vector of {len(embedding)}"
    raise MergeMismatch("a result holds no embedding")


def cut_vectors(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Parse an embeddings answer without its vectors.

    Returns the answer, in which every `embedding` that was a flat list is a number, and what stood between the
    brackets of each, by these numbers. A flat list holds no brackets: what stands between two of them, after
    `"embedding":`, is one. Not turning thousands of numbers into objects and back is an order of magnitude cheaper,
    and hands each caller exactly the digits that the upstream wrote. What does not fit this picture (vectors of
    vectors, base64) is parsed in full. Raises MergeMismatch when the answer is no JSON object.
    """
    pieces = body.split(b"]")
    skeleton: list[bytes] = []
    vectors: list[bytes] = []
    last = pieces.pop()
    for piece in pieces:
        before, _, inside = piece.rpartition(b"[")
        if before.endswith(b'"embedding":') or _is_spaced_member(before):
            skeleton.append(before)
            skeleton.append(b"true")  # which no embedding is
            vectors.append(inside)
        else:
            skeleton.append(piece)
            skeleton.append(b"]")
    skeleton.append(last)
    if not vectors:
        return load_reply(body), []
    try:
        envelope = orjson.loads(b"".join(skeleton))
    except orjson.JSONDecodeError:
        return load_reply(body), []
    results = envelope.get("data") if type(envelope) is dict else None
    if type(results) is not list:
        return load_reply(body), []
    found = 0
    for result in results:
        embedding = result.get("embedding") if type(result) is dict else None
        if embedding is True:
            result["embedding"] = found
            found += 1
        elif type(embedding) is int:
            return load_reply(body), []  # it would pass for one of ours
    return (envelope, vectors) if found == len(vectors) else (load_reply(body), [])


def _is_spaced_member(before: bytes) -> bool:
    head = before.rstrip()
    return head.endswith(b":") and head[:-1].rstrip().endswith(b'"embedding"')


class _Rows:
    """Writes results: by filling in the form of the first where they are like it, else in full.

    Raises MergeMismatch unless all are embeddings of one kind and size, with nothing told beside them.
    """

    __slots__ = ("_around", "_commas", "_fixed", "_form", "_has_form", "_index_first", "_kind", "_vectors")

    def __init__(self, results: Sequence[dict[str, Any]], vectors: list[bytes]) -> None:
        first = results[0]
        names = list(first)
        self._vectors = vectors
        self._fixed = [(name, value) for name, value in first.items() if name not in ("index", "embedding")]
        self._kind = _kind(first.get("embedding"), vectors)
        _check(first)
        self._commas = 0
        self._has_form = len(vectors) == len(results) and all(type(value) is str for _, value in self._fixed)
        self._index_first = self._has_form and names.index("index") < names.index("embedding")
        if self._has_form:
            self._commas = vectors[first["embedding"]].count(b",")
        self._form = orjson.dumps({**first, "index": _GAP, "embedding": _GAP}).split(b"\0") if self._has_form else []
        self._around: list[tuple[bytes, bytes]] = []
        """What stands before and after the vector of a result, by its index."""

    def write(self, pieces: list[bytes], result: dict[str, Any], index: int) -> None:
        """Add `result` as the one at `index` of its caller's, after a comma where it is not the first."""
        if not self._fits(result):
            kind = _kind(result.get("embedding"), self._vectors)
            if kind != self._kind:
                raise MergeMismatch(f"the embeddings are of several kinds: {self._kind}, {kind}")
            _check(result)
            result["index"] = index
            if self._vectors and type(result.get("embedding")) is int:
                result["embedding"] = orjson.Fragment(b"[%b]" % self._vectors[result["embedding"]])
            pieces.append(b"," + orjson.dumps(result) if index else orjson.dumps(result))
            return
        if index == len(self._around):
            self._around.append(self._filled_in(index))
        around, vector = self._around[index], self._vectors[result["embedding"]]
        if vector.count(b",") != self._commas:
            raise MergeMismatch(f"the embeddings are of several kinds: {self._kind}, a vector of another length")
        pieces.append(around[0])
        pieces.append(vector)
        pieces.append(around[1])

    def _fits(self, result: dict[str, Any]) -> bool:
        """Whether `result` differs from the first in nothing but its index and its vector."""
        if not self._has_form or len(result) != len(self._fixed) + 2:
            return False
        return all(result.get(name) == value for name, value in self._fixed)

    def _filled_in(self, index: int) -> tuple[bytes, bytes]:
        lead, between, trail = self._form
        number, comma = b"%d" % index, b"," if index else b""
        if self._index_first:
            return b"%b%b%b%b[" % (comma, lead, number, between), b"]" + trail
        return b"%b%b[" % (comma, lead), b"]%b%b%b" % (between, number, trail)
