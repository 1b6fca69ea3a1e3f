"""Answers full of vectors, read without reading the numbers."""

from __future__ import annotations

import re
from typing import Any

import orjson

from proxy.wire.base import MergeMismatch

__all__ = ["load_embeddings", "load_reply"]

_MEMBER = b'"embedding"'
_OPENING = re.compile(rb"\s*:\s*\[")


def load_reply(body: bytes) -> dict[str, Any]:
    """Parse an answer that must be a JSON object. Raises MergeMismatch when it is none."""
    try:
        envelope = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MergeMismatch(f"the answer is not valid JSON: {error}") from None
    if type(envelope) is not dict:
        raise MergeMismatch("the answer is not a JSON object")
    return envelope


def load_embeddings(body: bytes) -> dict[str, Any]:
    """Parse an embeddings answer; every `embedding` that is a list becomes an `orjson.Fragment` of its own bytes.

    A vector holds no brackets, so it ends at the next one. Not turning thousands of numbers into objects and back
    is an order of magnitude cheaper, and hands each caller exactly the digits that the upstream wrote. Anything
    that does not fit this picture (vectors of vectors) is parsed in full. Raises MergeMismatch when the answer is
    no JSON object.
    """
    pieces: list[bytes] = []
    vectors: list[bytes] = []
    position = 0
    at = -1
    while (at := body.find(_MEMBER, max(at + 1, position))) >= 0:
        opening = _OPENING.match(body, at + len(_MEMBER))
        if opening is None:
            continue  # `"object":"embedding"`
        start = opening.end() - 1
        end = body.find(b"]", start) + 1
        if end == 0:
            return load_reply(body)
        pieces.append(body[position:start])
        vectors.append(body[start:end])
        position = end
    if not vectors:
        return load_reply(body)
    skeleton = b"".join(piece + b"%d" % number for number, piece in enumerate(pieces)) + body[position:]
    try:
        envelope = orjson.loads(skeleton)
    except orjson.JSONDecodeError:
        return load_reply(body)
    results = envelope.get("data") if type(envelope) is dict else None
    if type(results) is not list:
        return load_reply(body)
    used = set()
    for result in results:
        number = result.get("embedding") if type(result) is dict else None
        if type(number) is int and 0 <= number < len(vectors):
            result["embedding"] = orjson.Fragment(vectors[number])
            used.add(number)
    return envelope if len(used) == len(vectors) else load_reply(body)
