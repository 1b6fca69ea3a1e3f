"""TensorFlow Serving's REST API, which KServe's v1 protocol shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Reply, Route, WireFormat
from proxy.wire.items import pass_on
from proxy.wire.jsonbody import canonical, load_object
from proxy.wire.prompt import BYTES_PER_TOKEN
from proxy.wire.vectors import load_reply

__all__ = ["TFServing"]

PREDICT = Route("tfserving.predict", generates=False, auto_merge=True)
COLUMNS = Route("tfserving.predict_columns", generates=False)
OTHER = Route("tfserving.other", generates=False)

_PATH = re.compile(r"/v1/models/([^/:]+)(?:/(?:versions|labels)/[^/:]+)?:(predict|classify|regress|explain)")


class TFServing(WireFormat):
    """The `tfserving` wire format.

    Predictions merge where every row has the same shape and kind of value; results come in the order of the rows.
    In row form (`instances`) rows are independent by definition; that the first dimension of the column form
    (`inputs`) is a batch is the operator's word (`dispatch: merge`). Classifications and regressions go one by one.
    """

    name = "tfserving"
    routes = (
        PREDICT,
        COLUMNS,
        OTHER,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`."""
        found = _PATH.fullmatch(path) if method == "POST" else None
        if found is None:
            return None
        return PREDICT if found.group(2) == "predict" else OTHER

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object."""
        found = _PATH.fullmatch(head.path)
        call = Call(route=route, body=body, model=found.group(1) if found else "")
        payload = load_object(head, body)
        if payload is None:
            return call
        call.payload = payload
        call.prompt_tokens = len(body) // BYTES_PER_TOKEN + 1
        if route is PREDICT and ("instances" in payload) != ("inputs" in payload):
            _read_rows(call, head)
        return call

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message}`."""
        return Reply(status, orjson.dumps({"error": message if param is None else f"{param}: {message}"}))

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body with everybody's rows."""
        if len(calls) == 1:
            return calls[0].body
        field = calls[0].extra["field"]
        given = [call.payload[field] for call in calls]
        rows: Any
        if type(given[0]) is list:
            rows = [row for value in given for row in value]
        else:
            rows = {name: [row for value in given for row in value[name]] for name in given[0]}
        return orjson.dumps({**calls[0].payload, field: rows})

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Deal out the rows of `predictions` or of every column of `outputs`."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        answer = load_reply(body)
        field = "predictions" if calls[0].extra["field"] == "instances" else "outputs"
        results = answer.get(field)
        total = sum(call.items for call in calls)
        columns: dict[str, Any] = results if type(results) is dict else {"": results}
        for name, column in columns.items():
            if type(column) is not list or len(column) != total:
                raise MergeMismatch(f"{field} {name!r} does not hold one result for each of {total} rows")
        if not columns:
            raise MergeMismatch(f"the answer has no {field}")
        replies, start = [], 0
        for call in calls:
            end = start + call.items
            mine: Any = {name: column[start:end] for name, column in columns.items()}
            replies.append(
                Reply(status, orjson.dumps({**answer, field: mine if type(results) is dict else mine[""]}))
            )
            start = end
        return replies


def _read_rows(call: Call, head: Head) -> None:
    """Fill in the rows of a prediction and the key under which it may be merged."""
    field = "instances" if "instances" in call.payload else "inputs"
    given = call.payload[field]
    columns: dict[str, Any]
    if type(given) is list:
        columns = {"": given}
    elif type(given) is dict and field == "inputs":
        columns = given
    else:
        return
    if field == "inputs":
        call.route = COLUMNS
    if not columns or not all(type(column) is list and column for column in columns.values()):
        return
    sizes = {len(column) for column in columns.values()}
    call.items = max(sizes)
    shapes = {name: _common_shape(column) for name, column in columns.items()}
    rest = canonical(call.payload, (field,))
    if len(sizes) != 1 or None in shapes.values() or rest is None:
        return
    call.extra["field"] = field
    bare = type(given) is list
    call.compat_key = (call.route.name, head.target, field, bare, tuple(sorted(shapes.items())), rest)


def _common_shape(rows: list[Any]) -> str | None:
    """Describe the shape that all rows share; None when they differ or go too deep."""
    shapes = {_shape(row, 8) for row in rows}
    return shapes.pop() if len(shapes) == 1 else None


def _shape(value: Any, depth: int) -> str | None:
    """Describe sizes and kind of value of one row, judging arrays by their first element.

    A ragged array beyond that is for the upstream to find: the batch fails and is taken apart.
    """
    kind = type(value)
    if kind in (int, float):
        return "number"
    if kind is not dict and kind is not list:
        return kind.__name__
    if depth == 0:
        return None
    if kind is list:
        inner = _shape(value[0], depth - 1) if value else "nothing"
        return None if inner is None else f"{len(value)}x{inner}"
    if set(value) == {"b64"}:
        return "bytes"
    members = {name: _shape(member, depth - 1) for name, member in value.items()}
    return None if None in members.values() else repr(sorted(members.items()))
