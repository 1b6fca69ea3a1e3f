"""What a caller merely claims sizes nothing, and what may be joined by position is proved first."""

from __future__ import annotations

import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.base import BadRequest, Call, MergeMismatch
from proxy.wire.kserve import KServe
from proxy.wire.openai import MAX_SEQUENCES
from proxy.wire.tensors import TensorError, read_tensors
from tests.proxy.wire.support import CHAT, COMPLETIONS, EMBEDDINGS, parse

INFER = "/v2/models/m/infer"
HUGE = [2**31, 2**63 - 1, 2**63, 2**64 - 1, 10**17]


def infer(shape: Any, data: Any, datatype: str = "FP32", **more: Any) -> Call:
    return parse(INFER, {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data, **more}]})


# -- counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize(
    "shape", [["n", 0], [0, "n"], ["n", 0, "n"], ["n"], ["n", 1], ["n", "n"], [-1, "n"], ["n", 0.0]]
)
def test_a_shape_that_no_data_bears_out_counts_as_one_and_goes_alone(huge: int, shape: list[Any]) -> None:
    call = infer([huge if size == "n" else size for size in shape], [])
    assert call.items == 1
    assert call.compat_key is None


@pytest.mark.parametrize("huge", [*HUGE, -1, 1.5, "3", True, None])
def test_a_binary_size_that_no_bytes_bear_out_goes_alone(huge: Any) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": huge}}
    header = orjson.dumps({"inputs": [tensor]})
    call = parse(INFER, header + b"abcd", ("Inference-Header-Content-Length", str(len(header))))
    assert (call.items, call.compat_key) == (1, None)


@pytest.mark.parametrize(
    "length", ["9" * 5000, "0" * 5000 + "9" * 30, "99999999999999999999", "-1", "1e3", "\xb2", ""]
)
def test_an_absurd_json_length_is_a_bad_request(length: str) -> None:
    with pytest.raises(BadRequest):
        parse(INFER, {"inputs": []}, ("Inference-Header-Content-Length", length))


def test_a_json_length_of_zeros_is_zero() -> None:
    with pytest.raises(BadRequest):
        parse(INFER, {"inputs": []}, ("Inference-Header-Content-Length", "0" * 5000))


@pytest.mark.parametrize("length", [b"9" * 5000, b"0" * 5000 + b"7" * 30, b"-1", b"", b"x"])
def test_an_absurd_json_length_in_an_answer_is_a_mismatch(length: bytes) -> None:
    calls = [infer([1, 1], [1.0]), infer([1, 1], [2.0])]
    with pytest.raises(MergeMismatch):
        KServe().split(calls, 200, b"{}", ((b"Inference-Header-Content-Length", length),))


@pytest.mark.parametrize("value", [10**15, 10**9, 2**63, 1e300, -5, 0, True, "9", None, [], {}])
def test_what_a_completion_claims_is_bounded(value: Any) -> None:
    for field in ("max_tokens", "n", "best_of", "dimensions", "top_n", "logprobs"):
        for path, body in (
            (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
            (COMPLETIONS, {"prompt": ["x", "y"]}),
            (EMBEDDINGS, {"input": ["x", "y"]}),
            ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}),
        ):
            call = parse(path, {"model": "m", **body, field: value})
            assert 1 <= call.items <= MAX_SEQUENCES
            assert call.prompt_tokens < 100
            assert call.max_tokens is None or 0 <= call.max_tokens <= 10**9


def test_n_does_not_multiply_prompts_beyond_what_one_may_ask_for() -> None:
    prompts = ["x"] * 1000
    assert parse(COMPLETIONS, {"model": "m", "prompt": prompts, "n": 128}).items == 1000
    assert parse(COMPLETIONS, {"model": "m", "prompt": prompts[:3], "n": 4}).items == 12


def test_braces_are_no_pictures_without_end() -> None:
    parts = [{}] * 100_000
    assert parse(CHAT, {"model": "m", "messages": [{"role": "user", "content": parts}]}).prompt_tokens < 200_000


# -- proofs ------------------------------------------------------------------------------------------------------

RAGGED: list[tuple[list[int], Any]] = [
    ([1, 3], [[1, 1, 1, 1, 1, 1]]),
    ([1, 3], [[]]),
    ([1, 3], [[1, 1]]),
    ([2, 3], [[1, 1, 1], [1, 1, 1, 1]]),
    ([2, 2, 2], [[1, 2, 3, 4], [5, 6, 7, 8]]),
    ([2, 2, 2], [[[1, 2], [3]], [[4, 5], [6, 7, 8]]]),
    ([2, 2], [1, 2, 3]),
    ([2, 2], [1, 2, 3, [4]]),
    ([2, 1], [[1], 2]),
    ([1, 1], [[[1]]]),
    ([2], [[1], [2]]),
    ([1, 1], [None]),
    ([1, 1], [{}]),
    ([1, 2], [1, True]),
    ([1, 2], [1, "1"]),
    ([], []),
    ([], [1]),
]


@pytest.mark.parametrize(("shape", "data"), RAGGED)
def test_data_that_does_not_make_its_shape_at_every_level_goes_alone(shape: list[int], data: Any) -> None:
    assert infer(shape, data).compat_key is None


@pytest.mark.parametrize(
    ("datatype", "good", "bad"),
    [
        ("BOOL", [True, False], [[True, 1], [0, 1], ["true", True]]),
        ("INT8", [-128, 127], [[1, 128], [1, -129], [1, 1.0], [1, True]]),
        ("UINT64", [0, 2**64 - 1], [[1, -1], [1, 1e19]]),
        ("INT64", [-(2**63), 2**63 - 1], [[1, 2**63], [1, 1e3]]),
        ("FP32", [1, 2.5], [[1, True], [1, None], [1, "x"]]),
        ("BYTES", ["a", ""], [["a", 1], ["a", None], ["a", True]]),
        ("STRING", [], [["a", "b"]]),
        ("fp32", [], [[1, 2]]),
    ],
)
def test_every_element_is_of_the_type_that_is_named(datatype: str, good: list[Any], bad: list[list[Any]]) -> None:
    if good:
        assert infer([2, 1], good, datatype).compat_key is not None
        assert infer([2, 1], [[value] for value in good], datatype).compat_key is not None
    for values in bad:
        assert infer([2, 1], values, datatype).compat_key is None
        assert infer([2, 1], [[value] for value in values], datatype).compat_key is None


def test_data_beside_binary_data_goes_alone() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}, "data": [7]}
    header = orjson.dumps({"inputs": [tensor]})
    call = parse(INFER, header + struct.pack("<f", 1), ("Inference-Header-Content-Length", str(len(header))))
    assert call.compat_key is None


@pytest.mark.parametrize("tokens", [[-1], [1, 2**31], [1.0], [True], [[1], [-1]], [[1], [2.0]], [[1], 2], [[[1]]]])
def test_what_no_vocabulary_holds_goes_alone(tokens: Any) -> None:
    assert parse(EMBEDDINGS, {"model": "m", "input": tokens}).compat_key is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, width=16) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(shape=st.lists(st.integers(0, 3), max_size=3), data=st.lists(json_values, max_size=6))
@settings(max_examples=300, deadline=None)
def test_what_is_read_has_exactly_as_many_elements_as_it_says(shape: list[int], data: list[Any]) -> None:
    def flat(value: Any) -> list[Any]:
        return [leaf for inner in value for leaf in flat(inner)] if isinstance(value, list) else [value]

    try:
        (tensor,) = read_tensors([{"name": "x", "datatype": "FP32", "shape": shape, "data": data}], b"")
    except TensorError:
        return
    size = 1
    for length in shape:
        size *= length
    assert len(flat(tensor.data)) == size
    if tensor.form == "nested" and size:
        assert all(len(flat(row)) == size // shape[0] for row in tensor.data)
