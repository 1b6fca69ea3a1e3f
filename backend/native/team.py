"""Native operations: one at a time as they are called for, or many of them from a list."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from backend.native.library import load_library

__all__ = ["Operation", "Program", "Recording", "fresh", "record", "spread"]

_RECORD = np.dtype([("kind", "i8"), ("count", "i8"), ("least", "i8"), ("number", "f8"), ("a", "i8", (20,))])
"""struct operation of team.c."""

_NAMES = (
    "norm_rows",
    "gate_rows",
    "rotate_rows",
    "store_rows",
    "attend_parts",
    "lay_out_rows",
    "multiply_strips",
    "multiply_tiles",
)
"""In the order of enum kind of team.c."""

_GO_OVER_ROWS = ("norm_rows", "gate_rows", "rotate_rows", "store_rows")
_TAKE_ROWS = {"lay_out_rows": 2, "multiply_strips": 4, "multiply_tiles": 4}
"""Where among its arguments an operation has the number of rows."""


class Operation:
    """One of the kernels: a foreign function whose last two arguments are a range, given as its first and its end."""

    def __init__(self, library: ctypes.CDLL, name: str, argument_types: list[type]) -> None:
        self.kind = _NAMES.index(name)
        function = getattr(library, name)
        function.argtypes, function.restype = [*argument_types, ctypes.c_int64, ctypes.c_int64], None
        self.call: Callable[..., None] = function


@functools.cache
def _run_operations() -> Callable[[int, int, int], None]:
    library = load_library()
    assert library is not None, "an operation comes from it"
    function = library.run_operations
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int], None
    call: Callable[[int, int, int], None] = function
    return call


def _write(row: np.void, kind: int, arguments: tuple[object, ...], count: int, least: int) -> None:
    whole = [int(value or 0) for value in arguments if not isinstance(value, float)]  # type: ignore[call-overload]
    row["kind"], row["count"], row["least"] = kind, count, least
    row["number"] = next((value for value in arguments if isinstance(value, float)), 0.0)
    row["a"][: len(whole)] = whole


def spread(operation: Operation, arguments: tuple[object, ...], count: int, least: int = 1) -> None:
    """Do `operation` over 0..count - 1, in as many threads as torch uses but for no fewer than `least` each.

    While a recording is made it is only written down.
    """
    if _recordings:
        _recordings[-1].operations.append((operation.kind, arguments, count, least))
        return
    threads = min(torch.get_num_threads(), count // least)
    if threads < 2:
        operation.call(*arguments, 0, count)
        return
    record = np.zeros(1, _RECORD)
    _write(record[0], operation.kind, arguments, count, least)
    _run_operations()(record.ctypes.data, 1, torch.get_num_threads())


def fresh(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a result."""
    tensor = torch.empty(shape, dtype=dtype)
    if _recordings:
        _recordings[-1].buffers.append(tensor)
    return tensor


class Recording:
    """What was asked for while nothing was done."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, tuple[object, ...], int, int]] = []
        self.buffers: list[torch.Tensor] = []
        """Results, in the order in which they were made."""


_recordings: list[Recording] = []


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Write operations down instead of doing them."""
    _recordings.append(Recording())
    try:
        yield _recordings[-1]
    finally:
        _recordings.pop()


class Program:
    """A recording that can be run for any number of rows up to the one it was made for.

    It holds on to the results; whatever else its operations read and write has to outlive it.

    The memory of a result whose last reader is done serves later ones: a step stays in the processor's caches.

    Args:
        recording: what to do.
        rows: how many there were.
        result: what is read afterwards, one of the recording's buffers.
    """

    def __init__(self, recording: Recording, rows: int, result: torch.Tensor) -> None:
        self._list = np.zeros(len(recording.operations), _RECORD)
        for row, operation in zip(self._list, recording.operations, strict=True):
            _write(row, *operation)
        self._kept = [result, *_share_memory(self._list["a"], recording.buffers, result)]
        kinds = self._list["kind"]
        self._over_rows = np.isin(kinds, [_NAMES.index(name) for name in _GO_OVER_ROWS])
        self._taking = [(np.flatnonzero(kinds == _NAMES.index(name)), place) for name, place in _TAKE_ROWS.items()]
        self._rows = rows
        self._address = int(self._list.ctypes.data)

    def run(self, rows: int) -> None:
        """Do all operations, for the first `rows` rows of whatever they read and write."""
        if rows != self._rows:
            self._list["count"][self._over_rows] = rows
            for operations, place in self._taking:
                self._list["a"][operations, place] = rows
            self._rows = rows
        _run_operations()(self._address, len(self._list), torch.get_num_threads())


def _share_memory(
    arguments: npt.NDArray[np.int64], buffers: list[torch.Tensor], result: torch.Tensor
) -> list[torch.Tensor]:
    """Move the buffers that `arguments` [operations, 20] point into to memory that they share; return that memory."""
    ordered = sorted(buffers, key=torch.Tensor.data_ptr)
    starts = [buffer.data_ptr() for buffer in ordered]
    places = [*zip(*np.nonzero(arguments >= starts[0]), strict=True)] if starts else []
    uses: list[list[tuple[int, int]]] = [[] for _ in ordered]
    for place in places:
        number = bisect.bisect_right(starts, int(arguments[place])) - 1
        if arguments[place] < starts[number] + max(1, ordered[number].nbytes):
            uses[number].append(place)
    kept: list[torch.Tensor] = []
    free: list[tuple[int, torch.Tensor]] = []  # after which operation, memory
    for number in sorted((n for n, used in enumerate(uses) if used), key=lambda n: min(uses[n])):
        buffer = ordered[number]
        if buffer is result:
            continue
        first, last = min(uses[number])[0], max(uses[number])[0]
        fitting = [entry for entry in free if entry[0] < first and entry[1].nbytes == buffer.nbytes]
        memory = fitting[0][1] if fitting else torch.empty_like(buffer)
        if fitting:
            free.remove(fitting[0])
        else:
            kept.append(memory)
        free.append((last, memory))
        for place in uses[number]:
            arguments[place] += memory.data_ptr() - starts[number]
    return kept
