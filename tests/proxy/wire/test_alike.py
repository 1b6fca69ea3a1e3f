"""Two answers to one request, alone and in company, compared."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest

from proxy.wire.alike import alike
from proxy.wire.base import Reply
from proxy.wire.kserve import JSON_LENGTH, KServe


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"data": [0.5, 0.001]}, {"data": [0.501, 0.002]}, True),
        ({"data": [0.5, 0.001]}, {"data": [0.52, 0.001]}, False),
        ({"predictions": [0.18, 0.82]}, {"predictions": [0.0001, 0.0005]}, False),
        ({"score": 0.5}, {"score": 0.505}, True),
        ({"score": 0.5}, {"score": 0.6}, False),
        ({"id": "a", "created": 1, "usage": {"x": 1}, "v": 1}, {"id": "b", "created": 2, "v": 1}, True),
        ({"inner": {"id": "a"}}, {"inner": {"id": "b"}}, False),
        ([[1, 2]], [1, 2], False),
        ([1, 2], [1, 2, 3], False),
        ([True], [1], False),
        (["a"], ["b"], False),
        ([None], [0], False),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1.0], True),
    ],
)
def test_numbers_may_differ_a_little_and_nothing_else(one: Any, other: Any, same: bool) -> None:
    assert alike(orjson.dumps(one), orjson.dumps(other), ("id", "created", "usage")) is same


def test_what_is_no_json_must_be_equal() -> None:
    assert alike(b"x", b"x", ())
    assert not alike(b"x", b"y", ())


@pytest.mark.parametrize(("values", "same"), [([1.0, 100.5], True), ([1.0, 140.0], False)])
def test_binary_tensors_are_compared_by_their_numbers(values: list[float], same: bool) -> None:
    def answer(numbers: list[float]) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        output = {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
        header = orjson.dumps({"outputs": [output]})
        return header + struct.pack("<2f", *numbers), ((JSON_LENGTH, b"%d" % len(header)),)

    body, headers = answer([1.0, 100.0])
    other, theirs = answer(values)
    assert KServe().alike(Reply(200, body, "application/octet-stream", headers), other, theirs) is same
