"""Dividing what a pool may have in flight among the workers that serve it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["share_out"]


def share_out(total: int, demands: Sequence[int]) -> list[int]:
    """Return each worker's part of `total`: equal parts, but what one does not need goes to those who do.

    Max-min fair (Bertsekas and Gallager 1992, section 6.5.2), then what nobody asked for is spread evenly, so that
    the next burst finds room wherever it lands. Everybody gets at least 1, or requests would wait for ever: below
    one each, the parts add up to more than `total`.
    """
    count = len(demands)
    if count == 0:
        return []
    parts = [1] * count
    left = total - count
    if left <= 0:
        return parts
    wanting = sorted((max(0, demand - 1), index) for index, demand in enumerate(demands))
    for place, (demand, index) in enumerate(wanting):
        fair = left // (count - place)
        given = min(demand, fair)
        parts[index] += given
        left -= given
    for place in range(count):
        parts[place] += left // count + (place < left % count)
    return parts
