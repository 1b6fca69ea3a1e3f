"""The last ten minutes of every pool, so that whoever opens a chart sees more than what happens from now on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from controller.slo import LATENCIES
from proxy.clock import Clock, Timer
from proxy.pool_view import PoolView

__all__ = ["EVERY_S", "History"]

EVERY_S = 2.0
"""Seconds between two points: a chart of ten minutes is no finer on a screen."""
KEPT = 300
"""Points of a pool."""
_QUANTILES = ("p50", "p99")


class _Point(NamedTuple):
    """A pool at one moment. Latencies in the order of LATENCIES, in milliseconds; None where nothing is known."""

    wall: float
    max_batch_size: int
    window_ms: float
    queued: int
    inflight: int
    targets: tuple[float | None, ...]
    p50: tuple[float | None, ...]
    p99: tuple[float | None, ...]


class History:
    """Looks at every pool now and then. A pool that goes is forgotten with the next look."""

    def __init__(
        self, clock: Clock, pools: Callable[[], Mapping[str, PoolView]], wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._pools = pools
        self.wall = wall
        """Unix seconds."""
        self._points: dict[str, deque[_Point]] = {}
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to look."""
        self._look()

    def stop(self) -> None:
        """Look no more. Safe to call again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def columns(self, pool: str) -> dict[str, Any]:
        """Return the points of `pool` as columns of equal length, oldest first."""
        points = self._points.get(pool, ())
        return {
            "now": self.wall(),
            "every_s": EVERY_S,
            "at": [point.wall for point in points],
            "max_batch_size": [point.max_batch_size for point in points],
            "window_ms": [point.window_ms for point in points],
            "queued": [point.queued for point in points],
            "inflight": [point.inflight for point in points],
            "target_ms": _by_latency([point.targets for point in points]),
            "p50_ms": _by_latency([point.p50 for point in points]),
            "p99_ms": _by_latency([point.p99 for point in points]),
        }

    def _look(self) -> None:
        now = self._clock.now()
        self._timer = self._clock.call_at(now + EVERY_S, self._look)
        pools = self._pools()
        for name in self._points.keys() - pools.keys():
            del self._points[name]
        for name, pool in pools.items():
            kept = self._points.get(name)
            if kept is None:
                kept = self._points[name] = deque(maxlen=KEPT)
            kept.append(self._point(pool, now))

    def _point(self, pool: PoolView, now: float) -> _Point:
        controller, load = pool.controller, pool.load(now)
        setpoints, targets, found = controller.setpoints, dict(controller.slo.targets()), controller.quantiles(now)
        p50, p99 = (
            tuple([_rounded(found[name].get(q, {}).get("value_ms")) for name in LATENCIES]) for q in _QUANTILES
        )
        promised = tuple([_rounded(1000.0 * targets[name]) if name in targets else None for name in LATENCIES])
        return _Point(
            round(self.wall(), 3), setpoints.max_batch_size, setpoints.window_ms, load.queued, load.inflight,
            promised, p50, p99,
        )  # fmt: skip


def _by_latency(rows: Sequence[tuple[float | None, ...]]) -> dict[str, list[float | None]]:
    return {name: [row[index] for row in rows] for index, name in enumerate(LATENCIES)}


def _rounded(value_ms: float | None) -> float | None:
    return None if value_ms is None else round(value_ms, 3)
