"""Inference servers that read loosely and answer as they like, for `benchmarks.hostile.joining`.

Each works out every item from that item alone, so that what belongs to whom can be told by the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any
from zlib import crc32

from tests.support.scripted import Asked, Said

__all__ = ["MOODS", "Mood", "serve"]


class Mood(StrEnum):
    """How a server answers."""

    FLATTENS = "flattens"
    """As it should, but it counts elements only, as Triton does."""
    TRUNCATES = "truncates"
    """It answers several items without the last one."""
    REPEATS = "repeats"
    """It answers several items with one too many, the first again."""
    REORDERS = "reorders"
    """It lists results from the last to the first; their index, where there is one, is right."""
    FAILS = "fails"
    """Every third call fails, and the error quotes what was asked."""
    QUOTES = "quotes"
    """It quotes what was asked in fields beside the results."""


MOODS = tuple(Mood)
_STATUSES = (400, 401, 404, 413, 422, 429, 500, 503)


def serve(path: str, mood: Mood, asked: Asked, number: int) -> Said:
    """Answer the request `number` (from 0) to `path`."""
    try:
        body = asked.json
        make = _SERVERS[next(end for end in _SERVERS if path.endswith(end))]
        if mood is Mood.FAILS and number % 3 == 0:
            raise _Refusal(_STATUSES[number // 3 % len(_STATUSES)])
        said, several = make(body, mood)
    except _Refusal as refusal:
        words = f"cannot take {asked.body.decode()}"
        return Said({"error": {"message": words}, "detail": words}, refusal.status, [("X-About", _clean(words))])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return Said({"error": f"cannot read {asked.body.decode()}"}, 400)
    headers = [("Server", "odd"), ("ce-id", str(number))]
    if mood is Mood.QUOTES:
        headers.append(("X-About", _clean(asked.body.decode())))
        if isinstance(said, dict) and several:
            said = {**said, "warnings": [asked.body.decode()]}
    return Said(said, 200, headers)


class _Refusal(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _clean(text: str) -> str:
    return "".join(c for c in text if c.isprintable() and c.isascii())[:500]


def _mark(item: Any) -> float:
    """A number that tells one item from others."""
    return crc32(json.dumps(item, sort_keys=True).encode()) / 2**32


def _disturb(results: list[Any], mood: Mood, *, indexed: bool) -> list[Any]:
    if len(results) > 1:
        if mood is Mood.TRUNCATES:
            return results[:-1]
        if mood is Mood.REPEATS:
            return [*results, results[0]]
        if mood is Mood.REORDERS and indexed:
            return results[::-1]
    return results


def _items(given: Any) -> list[Any]:
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise _Refusal(400)
    if all(isinstance(item, int) for item in given):
        return [given]
    if not all(isinstance(item, str | list) and item for item in given):
        raise _Refusal(422)
    return given


def _embeddings(body: Any, mood: Mood) -> tuple[Any, bool]:
    items = _items(body["input"])
    data = [{"object": "embedding", "index": i, "embedding": [_mark(item), 0.5]} for i, item in enumerate(items)]
    return {"object": "list", "data": _disturb(data, mood, indexed=True), "model": "m"}, len(items) > 1


def _completions(body: Any, mood: Mood) -> tuple[Any, bool]:
    items = _items(body["prompt"])
    choices = [{"index": i, "text": f"after {item}"} for i, item in enumerate(items)]
    return {"id": "cmpl-1", "choices": _disturb(choices, mood, indexed=True), "model": "m"}, len(items) > 1


def _ollama(body: Any, mood: Mood) -> tuple[Any, bool]:
    items = _items(body["input"])
    rows = _disturb([[_mark(item), 0.5] for item in items], mood, indexed=False)
    return {"model": "m", "embeddings": rows}, len(items) > 1


def _tei(body: Any, mood: Mood) -> tuple[Any, bool]:
    items = _items(body["inputs"])
    return _disturb([[_mark(item), 0.5] for item in items], mood, indexed=False), len(items) > 1


def _rerank(body: Any, mood: Mood) -> tuple[Any, bool]:
    documents = body["documents"]
    if not isinstance(documents, list) or not documents:
        raise _Refusal(400)
    results = [{"index": i, "relevance_score": _mark(d), "document": d} for i, d in enumerate(documents)]
    results.sort(key=lambda result: -result["relevance_score"])
    return {"id": "r", "results": _disturb(results, mood, indexed=True)}, len(documents) > 1


def _predict(body: Any, mood: Mood) -> tuple[Any, bool]:
    if "instances" in body:
        rows = _evenly(body["instances"])
        return {"predictions": _disturb(rows, mood, indexed=False)}, len(rows) > 1
    given = body["inputs"]
    columns = given if isinstance(given, dict) else {"": given}
    rows = [_mark(row) for row in zip(*(columns[name] for name in sorted(columns)), strict=True)]
    return {"outputs": _disturb(rows, mood, indexed=False)}, len(rows) > 1


def _evenly(rows: list[Any]) -> list[float]:
    """Work out rows by reading all numbers in a row, where they are lists of such."""
    values = _flat(rows)
    if not all(isinstance(row, list) for row in rows) or not all(isinstance(value, float) for value in values):
        return [_mark(row) for row in rows]
    width, rest = divmod(len(values), len(rows))
    if rest or width != 3:
        raise _Refusal(400)
    return [_mark(values[i * width : (i + 1) * width]) for i in range(len(rows))]


def _infer(body: Any, mood: Mood) -> tuple[Any, bool]:
    (tensor,) = body["inputs"]
    shape, values = tensor["shape"], _flat(tensor["data"])
    if len(values) != math.prod(shape):
        raise _Refusal(400)
    if not shape or not values:
        return {"model_name": "m", "outputs": [{**tensor, "name": "y"}]}, False
    width = len(values) // shape[0]
    rows = [_mark(values[i * width : (i + 1) * width]) for i in range(shape[0])]
    rows = _disturb(rows, mood, indexed=False)
    output = {"name": "y", "datatype": "FP64", "shape": [len(rows)], "data": rows}
    answer = {"model_name": "m", "outputs": [output]}
    return ({"id": body["id"], **answer} if "id" in body else {"id": "minted", **answer}), shape[0] > 1


def _flat(value: Any) -> list[Any]:
    return [leaf for inner in value for leaf in _flat(inner)] if isinstance(value, list) else [value]


_SERVERS: dict[str, Callable[[Any, Mood], tuple[Any, bool]]] = {
    "/v1/embeddings": _embeddings,
    "/v1/completions": _completions,
    "/api/embed": _ollama,
    "/embed": _tei,
    "/rerank": _rerank,
    ":predict": _predict,
    "/infer": _infer,
}
