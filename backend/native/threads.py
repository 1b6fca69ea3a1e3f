"""Native functions over ranges, in as many threads as torch uses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["NativeFunction", "pool", "spread"]

NativeFunction = Callable[..., None]
"""A foreign function whose last two arguments are the first of a range and one past its last."""


def spread(function: NativeFunction, arguments: tuple[object, ...], count: int, least: int = 1) -> None:
    """Call `function(*arguments, first, last)` over 0..count - 1, in ranges of at least `least`, one for a thread."""
    threads = min(torch.get_num_threads(), count // least)
    if threads < 2:
        function(*arguments, 0, count)
        return
    cuts = [count * part // threads for part in range(threads + 1)]
    calls = [pool().submit(function, *arguments, cuts[part], cuts[part + 1]) for part in range(threads)]
    for call in calls:
        call.result()


@functools.cache
def pool() -> ThreadPoolExecutor:
    """The threads that native functions run in when there are several; made when they are first needed."""
    return ThreadPoolExecutor(torch.get_num_threads(), "native")
