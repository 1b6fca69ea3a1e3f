"""How long answers usually are, per (model, tenant), learned online from the newest outcomes.

Rank transfers between models, scale does not: one model's answers can be half as long as another's to the same
prompts. Everything learned across models is therefore learned relative to this scale.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

__all__ = ["Constants", "Levels", "Scale", "SortedWindow"]

PRIOR_P50, PRIOR_P90 = 128.0, 512.0
"""Tokens. Before anything was seen; near the medians of public chat traces (129 to 350, p90 424 to 597)."""

KEPT = 128
"""Outcomes per group, and groups, that outlive a restart."""


class SortedWindow:
    """The newest `size` numbers, with exact quantiles. O(log n) to search, one memmove to insert."""

    __slots__ = ("_next", "_ring", "_size", "_sorted")

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        self._size = size
        self._ring = array("d")
        self._sorted = array("d")
        self._next = 0
        for value in values:
            self.add(value)

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, value: float) -> None:
        """Take in `value`; the oldest leaves once the window is full. NaN is refused with ValueError."""
        if value != value:
            raise ValueError("NaN has no rank")
        if len(self._ring) < self._size:
            self._ring.append(value)
        else:
            del self._sorted[bisect_left(self._sorted, self._ring[self._next])]
            self._ring[self._next] = value
            self._next = (self._next + 1) % self._size
        insort(self._sorted, value)

    def quantile(self, q: float) -> float:
        """Return the `q`-quantile, linear between ranks. Raises IndexError when empty."""
        ordered = self._sorted
        place = q * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    def values(self) -> list[float]:
        """Return the window, oldest first."""
        return list(self._ring[self._next :]) + list(self._ring[: self._next])


class Constants(NamedTuple):
    """What to say of a (model, tenant) without looking at the request, in tokens."""

    p50: float
    p90: float
    n: int
    """Outcomes behind it, of the narrowest group that took part."""
    narrow: bool
    """Whether the tenant's own outcomes carried it."""


class Scale:
    """Running quantiles per model and per (model, tenant), the narrow group shrunk to the wide by n/(n+k).

    At most `capacity` groups are kept, the least recently used leave; the newest `window` outcomes count.
    """

    def __init__(self, *, window: int = 512, capacity: int = 512, k: float = 10.0) -> None:
        self._window = window
        self._capacity = capacity
        self._k = k
        self._groups: OrderedDict[tuple[str, str], SortedWindow] = OrderedDict()
        self._all = SortedWindow(window)

    def constants(self, model: str, tenant: str) -> Constants:
        """Return the usual length for `model` and `tenant`, falling back to wider groups."""
        p50, p90, n, narrow = PRIOR_P50, PRIOR_P90, 0, False
        own = self._groups.get((model, tenant)) if tenant else None
        for group in (self._all, self._groups.get((model, "")), own):
            if not group:
                continue
            n = len(group)
            weight = n / (n + self._k)
            p50 += weight * (group.quantile(0.5) - p50)
            p90 += weight * (group.quantile(0.9) - p90)
            narrow = group is own and weight >= 0.5
        return Constants(max(p50, 1.0), max(p90, p50, 1.0), n, narrow)

    def observe(self, model: str, tenant: str, tokens: float) -> None:
        """Take note of one whole answer of `tokens` output tokens."""
        self._all.add(tokens)
        for key in ((model, ""), (model, tenant)) if tenant else ((model, ""),):
            _window(self._groups, key, self._window, self._capacity).add(tokens)

    def forget(self, model: str, tenant: str, keep: int = 32) -> None:
        """After a drift: keep only the newest `keep` outcomes of the groups this one reads."""
        for key in {(model, ""), (model, tenant)}:
            group = self._groups.get(key)
            if group is not None:
                self._groups[key] = SortedWindow(self._window, group.values()[-keep:])

    def pages(self) -> Iterator[list[Any]]:
        """Yield JSON-ready copies of the newest KEPT outcomes over all and of the most recently used KEPT groups."""
        yield [None, None, _newest(self._all)]
        yield from _pages(self._groups)

    def restore(self, pages: Iterable[Any]) -> None:
        """Take over what `pages` returned. Raises ValueError or TypeError when it is not that."""
        whole = SortedWindow(self._window)
        groups: OrderedDict[tuple[str, str], SortedWindow] = OrderedDict()
        for model, tenant, values in pages:
            window = SortedWindow(self._window, _finite(values))
            if model is None:
                whole = window
            elif window:
                groups[str(model), str(tenant)] = window
        self._all, self._groups = whole, groups


class Levels:
    """How far outcomes lie above the learned model, per (model, tenant): the running median of their log residual.

    The learned model carries the scale each group had when it was trained. Correcting it by residuals, not by raw
    lengths, leaves it alone when only the mix of requests changes, and finds the scale of a model never seen in
    training from few outcomes, because what the prompts explain is taken out first.
    """

    def __init__(self, *, window: int = 256, capacity: int = 512, k: float = 10.0) -> None:
        self._window = window
        self._capacity = capacity
        self._k = k
        self._groups: OrderedDict[tuple[str, str], SortedWindow] = OrderedDict()

    def level(self, model: str, tenant: str, known: int) -> float:
        """Return the correction in natural log. `known` is how many outcomes of the model it was trained on.

        The better a group was known in training, the more its residuals must differ from noise (1.5 standard errors
        of their median at the full) before they count: in steady traffic following them would only add their noise.
        """
        value = 0.0
        own = self._groups.get((model, ""))
        if own:
            middle = own.quantile(0.5)
            error = 0.93 * (own.quantile(0.75) - own.quantile(0.25)) / math.sqrt(len(own))
            excess = max(0.0, abs(middle) - 1.5 * error * known / (known + 200.0))
            value = math.copysign(excess, middle) * len(own) / (len(own) + 5.0 + min(known, 45))
        narrow = self._groups.get((model, tenant)) if tenant else None
        if narrow:
            value += len(narrow) / (len(narrow) + self._k) * (narrow.quantile(0.5) - value)
        return value

    def observe(self, model: str, tenant: str, residual: float) -> None:
        """Take in log((tokens + 1) / (predicted + 1)), the prediction being without this correction."""
        for key in ((model, ""), (model, tenant)) if tenant else ((model, ""),):
            _window(self._groups, key, self._window, self._capacity).add(residual)

    def forget(self, model: str, tenant: str, keep: int = 16) -> None:
        """After a drift: keep only the newest `keep` residuals."""
        for key in {(model, ""), (model, tenant)}:
            group = self._groups.get(key)
            if group is not None:
                self._groups[key] = SortedWindow(self._window, group.values()[-keep:])

    def clear(self) -> None:
        """A new model starts with no residuals."""
        self._groups.clear()

    def pages(self) -> Iterator[list[Any]]:
        """Yield JSON-ready copies of the newest KEPT residuals of the most recently used KEPT groups."""
        yield from _pages(self._groups)

    def restore(self, pages: Iterable[Any]) -> None:
        """Take over what `pages` returned. Raises ValueError or TypeError when it is not that."""
        self._groups = OrderedDict(
            ((str(m), str(t)), SortedWindow(self._window, _finite(values))) for m, t, values in pages
        )


def _pages(groups: OrderedDict[tuple[str, str], SortedWindow]) -> Iterator[list[Any]]:
    newest = list(islice(reversed(groups.items()), KEPT))[::-1]
    for (model, tenant), group in newest:
        yield [model, tenant, _newest(group)]


def _newest(group: SortedWindow) -> list[float]:
    return [round(value, 4) for value in group.values()[-KEPT:]]


def _finite(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"a length of {number}")
        yield number


def _window(
    groups: OrderedDict[tuple[str, str], SortedWindow], key: tuple[str, str], size: int, capacity: int
) -> SortedWindow:
    """Return the window of `key`, made if missing; the least recently used leaves beyond `capacity`."""
    group = groups.get(key)
    if group is None:
        group = groups[key] = SortedWindow(size)
        if len(groups) > capacity:
            groups.popitem(last=False)
    else:
        groups.move_to_end(key)
    return group
