"""Tensors of the Open Inference Protocol: their sizes, and cutting and joining them along the first dimension."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple

from proxy.wire.alike import alike_numbers

__all__ = ["ITEM_BYTES", "Tensor", "TensorError", "alike_tensors", "holds_its_type", "join", "read_tensors", "rows"]

ITEM_BYTES = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "BF16": 2,
    "FP32": 4,
    "FP64": 8,
}
"""Bytes per element; `BYTES` elements carry their own length, 4 bytes little-endian, in front."""

_FLOATS = {"FP16": "e", "FP32": "f", "FP64": "d"}
MAX_RANK: Final = 32

_COMPOUND: Final = frozenset({list, dict})
_NUMBERS: Final = frozenset({int, float})
_JSON_TYPES: dict[str, frozenset[type]] = {
    "BOOL": frozenset({bool}),
    "BYTES": frozenset({str}),
    **dict.fromkeys(("FP16", "BF16", "FP32", "FP64"), _NUMBERS),
}
_INTEGERS: dict[str, tuple[int, int]] = {
    **{f"UINT{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
"""Smallest and largest of each kind of integer."""


class TensorError(ValueError):
    """A tensor is not what it says it is."""


class Tensor(NamedTuple):
    """One input or output."""

    meta: dict[str, Any]
    """The JSON object as it came, data included when it is JSON."""
    name: str
    datatype: str
    shape: tuple[int, ...]
    form: str
    """`binary`; or `flat` or `nested` JSON data."""
    data: Any
    """bytes, or a list."""

    @property
    def batch(self) -> int:
        """The size of the first dimension, 0 for a scalar."""
        return self.shape[0] if self.shape else 0

    @property
    def row_elements(self) -> int:
        """Elements per entry of the first dimension."""
        return prod(self.shape[1:])


def read_tensors(metas: Any, blob: bytes) -> list[Tensor]:
    """Read a list of tensors whose binary data, if any, follow one another in `blob`.

    Raises TensorError when anything does not add up: shapes, the length of every list at every level, leftovers, or
    data kept in shared memory. What is returned holds as many elements as its shape says, so that no number in it is
    a mere claim, but for a shape with a 0 in it, whose other sizes nothing bears out.
    """
    if type(metas) is not list or not metas:
        raise TensorError("no list of tensors")
    tensors, position = [], 0
    for meta in metas:
        if type(meta) is not dict:
            raise TensorError("a tensor is no object")
        tensor, position = _read_tensor(meta, blob, position)
        tensors.append(tensor)
    if position != len(blob):
        raise TensorError(f"{len(blob) - position} bytes belong to no tensor")
    return tensors


def _read_tensor(meta: dict[str, Any], blob: bytes, position: int) -> tuple[Tensor, int]:
    name, datatype, shape = meta.get("name"), meta.get("datatype"), meta.get("shape")
    if type(name) is not str or type(datatype) is not str or type(shape) is not list:
        raise TensorError("a tensor lacks name, datatype or shape")
    if len(shape) > MAX_RANK or not all(type(size) is int and size >= 0 for size in shape):
        raise TensorError(f"tensor {name!r} has shape {shape!r}")
    parameters = meta.get("parameters")
    size = parameters.get("binary_data_size") if type(parameters) is dict else None
    if size is None:
        data = meta.get("data")
        if type(data) is not list:
            raise TensorError(f"tensor {name!r} has no data")
        return Tensor(meta, name, datatype, tuple(shape), _form(name, shape, data), data), position
    if type(size) is not int or not 0 <= size <= len(blob) - position:
        raise TensorError(f"tensor {name!r} has a wrong binary_data_size")
    if "data" in meta:
        raise TensorError(f"tensor {name!r} has both data and binary data")
    data = blob[position : position + size]
    tensor = Tensor(meta, name, datatype, tuple(shape), "binary", data)
    _check_binary(tensor)
    return tensor, position + size


def _form(name: str, shape: Sequence[int], data: list[Any]) -> str:
    """Tell flat data from nested. Every list of either is counted: servers that flatten count the total only."""
    if data and type(data[0]) is list:
        if len(shape) > 1 and _nests(data, shape, 0):
            return "nested"
    elif len(data) == prod(shape) and _COMPOUND.isdisjoint(map(type, data)):
        return "flat"
    raise TensorError(f"tensor {name!r}: its data does not make shape {list(shape)}")


def _nests(data: list[Any], shape: Sequence[int], level: int) -> bool:
    """Whether the lists from `level` on are of exactly the sizes in `shape`, and hold nothing but plain values."""
    if len(data) != shape[level]:
        return False
    if level + 1 == len(shape):
        return _COMPOUND.isdisjoint(map(type, data))
    return all(type(inner) is list and _nests(inner, shape, level + 1) for inner in data)


def holds_its_type(tensor: Tensor) -> bool:
    """Whether every element of JSON data is one of the tensor's datatype; binary data always is.

    A server that converts would make of `true`, `1.5` or `null` whatever suits the other members of the call.
    """
    if tensor.form == "binary":
        return True
    kinds: set[type] = set()
    bounds = _INTEGERS.get(tensor.datatype)
    for values in _innermost(tensor.data):
        kinds.update(map(type, values))
        if bounds is not None and (kinds != {int} or min(values) < bounds[0] or max(values) > bounds[1]):
            return False
    return bounds is not None or kinds <= _JSON_TYPES.get(tensor.datatype, frozenset())


def _innermost(data: list[Any]) -> Iterator[list[Any]]:
    """Yield the lists that hold plain values."""
    if data and type(data[0]) is list:
        for inner in data:
            yield from _innermost(inner)
    elif data:
        yield data


def _check_binary(tensor: Tensor) -> None:
    elements = prod(tensor.shape)
    width = ITEM_BYTES.get(tensor.datatype)
    if width is not None:
        if len(tensor.data) != elements * width:
            raise TensorError(f"tensor {tensor.name!r}: {len(tensor.data)} bytes do not make its shape")
    elif tensor.datatype == "BYTES":
        if len(_element_ends(tensor.data)) != elements:
            raise TensorError(f"tensor {tensor.name!r} does not hold {elements} elements")
    else:
        raise TensorError(f"tensor {tensor.name!r} has unknown datatype {tensor.datatype!r}")


def _element_ends(data: bytes) -> list[int]:
    """Return where each length-prefixed element ends. Raises TensorError when the last one is cut off."""
    ends, position, size = [], 0, len(data)
    while position < size:
        if position + 4 > size:
            raise TensorError("a BYTES tensor ends inside a length")
        position += 4 + struct.unpack_from("<I", data, position)[0]
        if position > size:
            raise TensorError("a BYTES tensor ends inside an element")
        ends.append(position)
    return ends


def alike_tensors(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, but for numbers that are merely close."""
    if (one.name, one.datatype, one.shape, one.form) != (other.name, other.datatype, other.shape, other.form):
        return False
    code = _FLOATS.get(one.datatype)
    if one.form != "binary" or code is None:
        return one.data == other.data or (one.form != "binary" and alike_numbers(one.data, other.data))
    form = f"<{len(one.data) // ITEM_BYTES[one.datatype]}{code}"
    return alike_numbers(list(struct.unpack(form, one.data)), list(struct.unpack(form, other.data)))


def join(tensors: Sequence[Tensor]) -> tuple[list[int], Any]:
    """Join tensors of one name, datatype, form and row shape along the first dimension; return shape and data."""
    shape = [sum(tensor.batch for tensor in tensors), *tensors[0].shape[1:]]
    if tensors[0].form == "binary":
        return shape, b"".join(tensor.data for tensor in tensors)
    return shape, [value for tensor in tensors for value in tensor.data]


def rows(tensor: Tensor, sizes: Sequence[int]) -> list[Any]:
    """Cut a tensor's data into consecutive parts of `sizes` rows, which must add up to its first dimension."""
    step = tensor.row_elements
    if tensor.form == "nested":
        bounds = [0, *_running(sizes, 1)]
    elif tensor.form == "flat":
        bounds = [0, *_running(sizes, step)]
    elif tensor.datatype == "BYTES":
        ends = [0, *_element_ends(tensor.data)]
        bounds = [ends[at] for at in (0, *_running(sizes, step))]
    else:
        bounds = [0, *_running(sizes, step * ITEM_BYTES[tensor.datatype])]
    return [tensor.data[a:b] for a, b in pairwise(bounds)]


def _running(sizes: Sequence[int], step: int) -> list[int]:
    total, sums = 0, []
    for size in sizes:
        total += size * step
        sums.append(total)
    return sums
