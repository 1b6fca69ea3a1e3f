"""TensorFlow Serving's REST API, which KServe's v1 protocol shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Reply, Route, WireFormat
from proxy.wire.envelope import check_shared
from proxy.wire.faults import bare_error, object_error
from proxy.wire.items import pass_on
from proxy.wire.jsonbody import canonical, load_object
from proxy.wire.prompt import BYTES_PER_TOKEN
from proxy.wire.vectors import load_reply

__all__ = ["TFServing"]

PREDICT = Route("tfserving.predict", generates=False, pure=True)
COLUMNS = Route("tfserving.predict_columns", generates=False, pure=True)
OTHER = Route("tfserving.other", generates=False, pure=True)

_DEPTH: Final = 8
_NUMBERS = frozenset({int, float})
_PATH = re.compile(r"/v1/models/([^/:]+)(?:/(?:versions|labels)/[^/:]+)?:(predict|classify|regress|explain)")


class TFServing(WireFormat):
    """The `tfserving` wire format.

    Predictions merge where every row has the same shape and kind of value; results come in the order of the rows.
    That a model treats its rows one by one is the operator's word: `profile: tf-serving` gives it for the row form
    (`instances`), and `dispatch: merge` also for the column form (`inputs`), whose first dimension need not be a
    batch. Other servers share the path. Classifications and regressions go one by one.
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

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": message}`."""
        return bare_error(document) or object_error(document)

    def owns(self, call: Call) -> bool:
        """Tell that `/v1/models/NAME:predict` and its like are nobody else's."""
        return True

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
        check_shared(answer, (field,))
        results = answer.get(field)
        total = sum(call.items for call in calls)
        if type(results) is dict and field == "predictions":
            raise MergeMismatch("predictions are no list with one result for each row")
        columns: dict[str, Any] = results if type(results) is dict else {"": results}
        for name, column in columns.items():
            if type(column) is not list or len(column) != total:
                raise MergeMismatch(f"{field} {name!r} does not hold one result for each of {total} rows")
            if len({_kind(result) for result in column}) > 1:
                raise MergeMismatch(f"{field} {name!r} holds results of several kinds")
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
    return _shape_of_all(rows, _DEPTH)


def _shape_of_all(values: list[Any], depth: int) -> str | None:
    """Describe what every one of `values` is; None when they differ, or nothing proves what they are."""
    kinds = set(map(type, values))
    if not kinds:
        return None
    if kinds <= _NUMBERS:
        return "number"
    if len(kinds) > 1:
        return None
    kind = kinds.pop()
    if kind is str or kind is bool:
        return kind.__name__
    if depth == 0 or (kind is not list and kind is not dict):
        return None
    if kind is list:
        size = len(values[0])
        if any(len(value) != size for value in values):
            return None
        inner = _shape_of_all([item for value in values for item in value], depth - 1)
        return None if inner is None else f"{size}x{inner}"
    names = set(values[0])
    if not names or any(set(value) != names for value in values):
        return None
    if names == {"b64"}:
        return "bytes" if all(type(value["b64"]) is str for value in values) else None
    members = {name: _shape_of_all([value[name] for value in values], depth - 1) for name in names}
    return None if None in members.values() else repr(sorted(members.items()))


def _kind(value: Any) -> str:
    """Return what kind of result this is: a number, a list of so many, or another JSON type."""
    kind = type(value)
    if kind is list:
        return f"a list of {len(value)}"
    return "number" if kind in _NUMBERS else kind.__name__
