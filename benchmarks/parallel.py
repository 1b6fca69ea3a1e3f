"""Work that measures no time, in several processes at once."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.bars import Bar

__all__ = ["Work", "in_parallel"]

Work = Callable[[], Sequence[Bar]]
_WORKS: list[Work] = []
"""What a process that was forked off finds, since functions that close over something do not travel."""


def in_parallel(works: Sequence[Work], processes: int) -> list[Bar]:
    """Do `works`, begun in this order and at most `processes` at once; print what each printed, and return all bars.

    What a work raises is raised here. Works must not need threads that run already: processes are forked.
    """
    if processes < 2 or len(works) < 2:
        return [bar for work in works for bar in work()]
    _WORKS[:] = works
    bars: list[Bar] = []
    with ProcessPoolExecutor(min(processes, len(works)), mp_context=get_context("fork")) as pool:
        for text, found in pool.map(_do, range(len(works))):
            print(text, end="", flush=True)
            bars += found
    return bars


def _do(index: int) -> tuple[str, list[Bar]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        bars = list(_WORKS[index]())
    return printed.getvalue(), bars
