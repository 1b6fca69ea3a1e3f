"""The Open Inference Protocol: tensors as JSON and as bytes, merged along the first dimension and cut again."""

from __future__ import annotations

import random
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.base import BadRequest, Call, MergeMismatch, Reply
from proxy.wire.kserve import JSON_LENGTH, KServe
from proxy.wire.tensors import ITEM_BYTES, TensorError, read_tensors, rows
from tests.proxy.wire.support import parse

WIRE = KServe()
PATH = "/v2/models/resnet/infer"
Sent = tuple[bytes, tuple[tuple[str, str], ...]]


def elements(values: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


def as_request(inputs: list[dict[str, Any]], blobs: dict[str, bytes] | None = None, **fields: Any) -> Sent:
    """Write a request; inputs named in `blobs` travel as bytes."""
    metas = []
    for tensor in inputs:
        meta = dict(tensor)
        if blobs and meta["name"] in blobs:
            meta.pop("data", None)
            meta["parameters"] = {"binary_data_size": len(blobs[meta["name"]])}
        metas.append(meta)
    header = orjson.dumps({**fields, "inputs": metas})
    if not blobs:
        return header, ()
    blob = b"".join(blobs[tensor["name"]] for tensor in inputs if tensor["name"] in blobs)
    return header + blob, (("Inference-Header-Content-Length", str(len(header))),)


def call(sent: Sent, path: str = PATH) -> Call:
    return parse(path, sent[0], *sent[1])


def echo(body: bytes, json_length: int | None) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """A server that answers every input with an output of the same data, in the same form."""
    request = orjson.loads(body[:json_length])
    outputs = [{**tensor, "name": "out_" + tensor["name"]} for tensor in request["inputs"]]
    answer = {"model_name": "resnet", "model_version": "1", "id": request.get("id", "made up"), "outputs": outputs}
    header = orjson.dumps(answer)
    if json_length is None:
        return header, ()
    return header + body[json_length:], ((b"Inference-Header-Content-Length", b"%d" % len(header)),)


def merged_and_split(calls: list[Call]) -> list[Reply]:
    body = WIRE.merge(calls)
    headers = dict(WIRE.merge_headers(calls, body))
    length = int(headers[JSON_LENGTH]) if headers else None
    return WIRE.split(calls, 200, *echo(body, length))


def contents(reply: Reply) -> dict[str, tuple[list[int], Any]]:
    """Read an answer back: shape and data (or bytes) by output."""
    headers = {name.lower(): value for name, value in reply.headers}
    cut = int(headers[JSON_LENGTH]) if headers else len(reply.body)
    answer, blob = orjson.loads(reply.body[:cut]), reply.body[cut:]
    found, at = {}, 0
    for output in answer["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = (output["shape"], output["data"])
        else:
            found[output["name"]] = (output["shape"], blob[at : at + size])
            at += size
    assert at == len(blob)
    return found


def fp32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Sent], list[dict[str, tuple[list[int], Any]]]]:
    """Requests that may share a call, and what each must get back from `echo`."""
    form = draw(st.sampled_from(["flat", "nested", "binary", "bytes", "mixed"]))
    width = draw(st.integers(1, 3))
    rng = random.Random(draw(st.integers(0, 10**6)))
    sent, expected = [], []
    for _ in range(draw(st.integers(1, 5))):
        batch = draw(st.integers(1, 4))
        numbers = [[rng.randint(-99, 99) / 4 for _ in range(width)] for _ in range(batch)]
        flat = [number for row in numbers for number in row]
        x: dict[str, Any] = {"name": "x", "shape": [batch, width], "datatype": "FP32"}
        s: dict[str, Any] = {"name": "s", "shape": [batch, 1], "datatype": "BYTES"}
        words = [bytes(rng.choices(b"ab\x00\xff", k=rng.randint(0, 5))) for _ in range(batch)]
        if form in ("flat", "nested"):
            data: Any = flat if form == "flat" or width == 0 else numbers
            sent.append(as_request([{**x, "data": data}]))
            expected.append({"out_x": ([batch, width], data)})
        elif form == "binary":
            sent.append(as_request([x], {"x": fp32(*flat)}))
            expected.append({"out_x": ([batch, width], fp32(*flat))})
        elif form == "bytes":
            sent.append(as_request([s, x], {"s": elements(words), "x": fp32(*flat)}))
            expected.append({"out_s": ([batch, 1], elements(words)), "out_x": ([batch, width], fp32(*flat))})
        else:
            sent.append(as_request([{**x, "data": flat}, s], {"s": elements(words)}))
            expected.append({"out_x": ([batch, width], flat), "out_s": ([batch, 1], elements(words))})
    return sent, expected


@given(case=batches())
@settings(max_examples=80, deadline=None)
def test_everyone_gets_exactly_its_own_rows_in_every_form(case: tuple[list[Sent], list[Any]]) -> None:
    sent, expected = case
    calls = [call(request) for request in sent]
    assert len({one.compat_key for one in calls}) == 1
    assert calls[0].compat_key is not None
    if len(calls) == 1:
        assert WIRE.merge(calls) is calls[0].body
        return
    for reply, want in zip(merged_and_split(calls), expected, strict=True):
        assert contents(reply) == want
        assert reply.content_type == ("application/octet-stream" if reply.headers else "application/json")


def test_everyone_gets_its_own_id_back_or_one_of_its_own() -> None:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
    calls = [call(as_request([tensor], id="a")), call(as_request([tensor])), call(as_request([tensor], id="c"))]
    answers = [orjson.loads(reply.body) for reply in merged_and_split(calls)]
    assert [answer.get("id") for answer in answers] == ["a", "made up-1", "c"]
    assert {answer["model_version"] for answer in answers} == {"1"}


X = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1.0] * 6}


@pytest.mark.parametrize(
    "other",
    [
        as_request([{**X, "shape": [3, 2]}]),
        as_request([{**X, "datatype": "FP64"}]),
        as_request([{**X, "name": "y"}]),
        as_request([{**X, "data": [[1.0] * 3] * 2}]),
        as_request([{**X, "parameters": {"content_type": "np"}}]),
        as_request([X], {"x": fp32(*[1.0] * 6)}),
        as_request([X, {**X, "name": "y"}]),
        as_request([X], outputs=[{"name": "probabilities"}]),
        as_request([X], outputs=[{"name": "probabilities", "parameters": {"binary_data": True}}]),
        as_request([X], parameters={"priority": 1}),
    ],
)
def test_anything_but_the_rows_keeps_inferences_apart(other: Sent) -> None:
    first, second = call(as_request([X])), call(other)
    assert None not in (first.compat_key, second.compat_key)
    assert first.compat_key != second.compat_key


def test_models_and_versions_never_share_a_call() -> None:
    paths = ("/v2/models/a/infer", "/v2/models/b/infer", "/v2/models/a/versions/1/infer")
    assert len({call(as_request([X]), path).compat_key for path in paths}) == 3


@pytest.mark.parametrize(
    "sent",
    [
        as_request([X], parameters={"sequence_id": 3}),
        as_request([X, {**X, "name": "y", "shape": [3, 2]}]),
        as_request([X, X]),
        as_request([{**X, "shape": [], "data": [1.0]}]),
        as_request([{**X, "shape": [0, 3], "data": []}]),
        as_request([{**X, "shape": [2, 4]}]),
        as_request([{**X, "shape": [2, -3]}]),
        as_request([{**X, "shape": [2, 3.0]}]),
        as_request([{**X, "shape": [2, True]}]),
        as_request([{"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"shared_memory_region": "r"}}]),
        as_request([X], {"x": fp32(1.0)}),
        as_request([{**X, "datatype": "FP4"}], {"x": b"123"}),
        as_request([{**X, "shape": [2], "datatype": "BYTES"}], {"x": elements([b"only one"])}),
        as_request([{**X, "shape": [1], "datatype": "BYTES"}], {"x": elements([b"cut off"])[:-1]}),
        as_request([{**X, "shape": [1], "datatype": "BYTES"}], {"x": b"\x01\x00"}),
        (as_request([X])[0] + b"left over", (("Inference-Header-Content-Length", str(len(as_request([X])[0]))),)),
        as_request([]),
        (b'{"inputs": {"x": 1}}', ()),
        (b"{}", ()),
    ],
)
def test_what_does_not_add_up_or_keeps_state_travels_alone(sent: Sent) -> None:
    read = call(sent)
    assert read.compat_key is None
    assert read.body == sent[0]
    assert read.items >= 1


@pytest.mark.parametrize("length", ["-1", "x", "", "9999", "1e1", "²", "9" * 5000])
def test_a_wrong_json_length_is_a_bad_request_that_names_the_header(length: str) -> None:
    if length == "²":
        length = "²".encode().decode("latin-1")
    with pytest.raises(BadRequest) as refused:
        parse(PATH, as_request([X])[0], ("Inference-Header-Content-Length", length))
    assert refused.value.param == "Inference-Header-Content-Length"


def two_calls(*, binary: bool = False) -> list[Call]:
    return [call(as_request([X], {"x": fp32(*[1.0] * 6)} if binary else None)) for _ in range(2)]


@pytest.mark.parametrize(
    "outputs",
    [
        [{**X, "shape": [3, 2]}],
        [{**X, "shape": [4, 3], "data": [1.0] * 11}],
        [{**X, "shape": [1, 12], "data": [1.0] * 12}],
        [{**X, "shape": [], "data": [1.0]}],
        [{**X, "shape": [4, 3], "data": [1.0] * 12}, {**X, "shape": [1], "data": [1]}],
        [],
        None,
        [3],
    ],
)
def test_outputs_that_are_not_one_row_for_a_row_are_a_mismatch(outputs: Any) -> None:
    with pytest.raises(MergeMismatch):
        WIRE.split(two_calls(), 200, orjson.dumps({"outputs": outputs}))


@pytest.mark.parametrize("length", [b"x", b"-4", b"100000", b"3"])
def test_a_binary_answer_that_cannot_be_read_is_a_mismatch(length: bytes) -> None:
    body, _ = echo(as_request([X])[0], None)
    with pytest.raises(MergeMismatch):
        WIRE.split(two_calls(binary=True), 200, body, ((b"inference-header-content-length", length),))


def test_an_answer_may_be_json_though_the_request_was_binary() -> None:
    data = [[float(i)] * 3 for i in range(4)]
    answer = orjson.dumps({"outputs": [{"name": "y", "shape": [4, 3], "datatype": "FP32", "data": data}]})
    replies = WIRE.split(two_calls(binary=True), 200, answer)
    assert [contents(reply)["y"] for reply in replies] == [([2, 3], data[:2]), ([2, 3], data[2:])]


def test_the_merged_body_announces_its_json_length() -> None:
    calls = two_calls(binary=True)
    body = WIRE.merge(calls)
    ((name, value),) = WIRE.merge_headers(calls, body)
    header = orjson.loads(body[: int(value)])
    assert name == b"inference-header-content-length"
    assert header["inputs"][0]["shape"] == [4, 3]
    assert header["inputs"][0]["parameters"]["binary_data_size"] == len(body) - int(value) == 48
    assert WIRE.merge_headers(two_calls(), b"{}") == ()


@given(
    blob=st.binary(max_size=40),
    shape=st.lists(st.integers(0, 4), max_size=3),
    datatype=st.sampled_from([*ITEM_BYTES, "BYTES", "?"]),
)
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_cut_exactly_or_refused(blob: bytes, shape: list[int], datatype: str) -> None:
    meta = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(blob)}}
    try:
        (tensor,) = read_tensors([meta], blob)
    except TensorError:
        return
    parts = rows(tensor, [1] * tensor.batch) if shape else [blob]
    assert b"".join(parts) == (blob if tensor.batch or not shape else b"")
