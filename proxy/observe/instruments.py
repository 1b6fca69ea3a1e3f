"""Counters and histograms that cost a request well under a microsecond each.

Cells are plain attributes, found once and kept; the families turn into prometheus-client's exposition only when
somebody scrapes. Everything runs on one event loop, so there are no locks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar

__all__ = ["Count", "CounterFamily", "Histogram", "HistogramFamily"]

_MAX_EXTRA_BOUNDS: Final = 32
"""Boundaries that may be added while running, so that a busy operator cannot grow the series without bound."""


class Count:
    """One counter series."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        """Count `amount` more."""
        self.value += amount


class CounterFamily:
    """One counter metric: a cell for each combination of label values."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        """`name` without `_total`."""
        self.name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._cells: dict[tuple[str, ...], Count] = {}

    def labels(self, *values: str) -> Count:
        """Return the cell for `values`, making it at 0 when it is new. Keep it: this is the slow path."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has the labels {', '.join(self._labels)}")
            cell = self._cells[values] = Count()
        return cell

    def items(self) -> Iterable[tuple[tuple[str, ...], Count]]:
        """Return every series with its label values."""
        return self._cells.items()

    def __len__(self) -> int:
        return len(self._cells)

    def blank(self) -> CounterFamily:
        """Return the same metric without a series."""
        return CounterFamily(self.name, self._documentation, self._labels)

    def dump(self) -> list[Any]:
        """Return every series, JSON-ready, for `absorb` in another process."""
        return [[values, cell.value] for values, cell in self._cells.items()]

    def absorb(self, rows: Iterable[Any]) -> None:
        """Add what `dump` returned to the series here."""
        for values, value in rows:
            self.labels(*values).value += value

    def collect(self) -> Iterator[Metric]:
        """Yield the family as prometheus-client writes it out."""
        family = CounterMetricFamily(self.name, self._documentation, labels=self._labels)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.value)
        yield family


class Histogram:
    """One histogram series. `counts[i]` holds values in `(bounds[i-1], bounds[i]]`; the last holds the rest."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[float, tuple[str, float, float]] = {}
        """By the upper bound of a bucket: trace id, value and Unix seconds of a request that fell into it."""

    def exemplify(self, value: float, trace_id: str, wall: float) -> None:
        """Let the trace of an observed value stand for its bucket."""
        index = bisect_left(self.bounds, value)
        self.exemplars[self.bounds[index] if index < len(self.bounds) else inf] = (trace_id, value, wall)

    def buckets(self) -> list[Any]:
        """Return what prometheus-client takes as buckets, with exemplars where there are any."""
        rows = self.cumulative()
        if not self.exemplars:
            return rows
        found = [self.exemplars.get(bound) for bound in (*self.bounds, inf)]
        return [
            (bound, count) if one is None else (bound, count, Exemplar({"trace_id": one[0]}, one[1], one[2]))
            for (bound, count), one in zip(rows, found, strict=True)
        ]

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[_bucket(self.bounds, value)] += 1
        self.total += value

    def extend(self, values: Sequence[float]) -> None:
        """Count many values."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[_bucket(bounds, value)] += 1
            self.total += value

    def split(self, bound: float) -> None:
        """Add a boundary. What was counted around it stays above it, so cumulative counts never fall."""
        index = bisect_left(self.bounds, bound)
        self.bounds.insert(index, bound)
        self.counts.insert(index, 0)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return (upper bound as Prometheus writes it, values at or below it)."""
        running, rows = 0, []
        for bound, count in zip([*self.bounds, inf], self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == inf else repr(bound), float(running)))
        return rows


def _bucket(bounds: list[float], value: float) -> int:
    """Return what bisect_left does. Compiled, calling that costs six times as much."""
    low, high = 0, len(bounds)
    while low < high:
        middle = (low + high) // 2
        if bounds[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


class HistogramFamily:
    """One histogram metric. All its series share their boundaries, so that they can be summed."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], bounds: Iterable[float]) -> None:
        self.name = name
        self.bounds = sorted(set(bounds))
        self._documentation = documentation
        self._labels = tuple(labels)
        self._cells: dict[tuple[str, ...], Histogram] = {}
        self._extra = 0

    def labels(self, *values: str) -> Histogram:
        """Return the series for `values`, making it when it is new. Keep it: this is the slow path."""
        cell = self._cells.get(values)
        if cell is None:
            if len(values) != len(self._labels):
                raise ValueError(f"{self.name} has the labels {', '.join(self._labels)}")
            cell = self._cells[values] = Histogram(self.bounds)
        return cell

    def add_bound(self, bound: float) -> bool:
        """Put a boundary exactly at `bound`, for a target set while running; say whether there is one now."""
        if bound in self.bounds:
            return True
        if self._extra >= _MAX_EXTRA_BOUNDS:
            return False
        self._extra += 1
        self.bounds.insert(bisect_left(self.bounds, bound), bound)
        for cell in self._cells.values():
            cell.split(bound)
        return True

    def items(self) -> Iterable[tuple[tuple[str, ...], Histogram]]:
        """Return every series with its label values."""
        return self._cells.items()

    def blank(self) -> HistogramFamily:
        """Return the same metric, with the same boundaries, without a series."""
        return HistogramFamily(self.name, self._documentation, self._labels, self.bounds)

    def dump(self) -> list[Any]:
        """Return every series, JSON-ready, for `absorb` in another process."""
        return [
            [
                values,
                cell.bounds,
                cell.counts,
                cell.total,
                [[None if bound == inf else bound, *one] for bound, one in cell.exemplars.items()],
            ]
            for values, cell in self._cells.items()
        ]

    def absorb(self, rows: Iterable[Any]) -> None:
        """Add what `dump` returned to the series here.

        A boundary that only one side has is one here, too; counts stay at the boundary they were counted at, so
        nothing that was shown ever falls.
        """
        for values, bounds, counts, total, exemplars in rows:
            self._divide(bounds)
            cell = self.labels(*values)
            for bound, count in zip(bounds, counts, strict=False):
                if count:
                    cell.counts[bisect_left(cell.bounds, bound)] += count
            cell.counts[-1] += counts[-1]
            cell.total += total
            for bound, trace_id, value, wall in exemplars:
                cell.exemplars[inf if bound is None else bound] = (trace_id, value, wall)

    def _divide(self, bounds: Iterable[float]) -> None:
        for bound in bounds:
            index = bisect_left(self.bounds, bound)
            if index == len(self.bounds) or self.bounds[index] != bound:
                self.bounds.insert(index, bound)
                for cell in self._cells.values():
                    cell.split(bound)

    def collect(self) -> Iterator[Metric]:
        """Yield the family as prometheus-client writes it out."""
        family = HistogramMetricFamily(self.name, self._documentation, labels=self._labels)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.buckets(), cell.total)
        yield family
