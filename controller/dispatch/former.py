"""Which of the waiting requests to send together now, and which can no longer make it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Final

from controller.verdict import Choice

__all__ = ["batch_sizes", "first_come", "form_batch", "form_mixed", "moore_hodgson"]

_NEVER: Final = float("inf")


@lru_cache(maxsize=512)
def batch_sizes(cap: int) -> tuple[int, ...]:
    """Return the sizes worth trying: every one up to 32, then steps of an eighth, and the cap itself."""
    sizes = list(range(1, min(cap, 32) + 1))
    while sizes[-1] < cap:
        sizes.append(min(cap, sizes[-1] + max(1, sizes[-1] // 8)))
    return tuple(sizes)


def form_batch(
    deadlines: Sequence[float],
    cap: int,
    now: float,
    predict: Callable[[int], float],
    quantile: Callable[[int], float],
    backlog_s: float = 0.0,
    *,
    spare: bool = False,
    probe: bool = False,
) -> Choice:
    """Choose the batch that serves the most still-feasible requests per second of service.

        b* = argmax_b min(b, f(b)) / S(b),   f(b) = how many can make it if a batch of b runs now

    `deadlines` are in service order, and at most one batch's worth beyond `cap` is looked at; `predict(b)` and
    `quantile(b)` give S(b) and the time it stays within at the wanted confidence; `backlog_s` is how long the
    upstream is busy before this batch would start. Requests that cannot make it in the chosen batch are shed, for
    nothing faster will come; while `spare` upstreams are idle, only those for which even a batch of one would be too
    late. When nobody can make it, those are shed who could not make it alone. With `probe`, the one with most time
    left is sent all the same: nothing else would ever correct an estimate that condemns even a newcomer.
    """
    seen = deadlines[: 2 * cap + 64]
    if not seen:
        return Choice(0, ())
    ordered = sorted(seen)
    total = len(ordered)
    start = now + backlog_s
    best_value, best_take, best_finish = 0.0, 0, 0.0
    for size in batch_sizes(min(cap, total)):
        finish = start + quantile(size)
        feasible = total - bisect_left(ordered, finish)
        if feasible <= 0:
            break
        take = size if size < feasible else feasible
        value = take / predict(take)
        if value > best_value + 1e-9:
            best_value, best_take, best_finish = value, take, finish
    alone = start + quantile(1)
    if not best_take:
        hopeless = [i for i, deadline in enumerate(seen) if deadline < alone]
        if probe and len(hopeless) == total:
            hopeless.remove(max(hopeless, key=seen.__getitem__))
            return Choice(1, tuple(hopeless))
        return Choice(0, tuple(hopeless))
    limit = alone if spare else best_finish
    if ordered[0] >= limit:
        return Choice(best_take, ())
    return Choice(best_take, tuple(i for i, deadline in enumerate(seen) if deadline < limit))


def first_come(
    deadlines: Sequence[float],
    cap: int,
    now: float,
    quantile: Callable[[int], float] | None,
    backlog_s: float = 0.0,
    *,
    probe: bool = False,
) -> Choice:
    """Take the head of the order up to `cap`, shedding from it what can no longer make it in such a batch.

    Without a `quantile` (no model yet, or admission switched off) nothing is shed. A tolerance of 2 % of the time
    that is left keeps requests that are late only by the estimate's own error. `probe` as in `form_batch`.
    """
    waiting = len(deadlines)
    if quantile is None:
        return Choice(min(cap, waiting), ())
    finish = quantile(min(cap, waiting)) if waiting else 0.0
    limit = now + backlog_s + 0.98 * finish
    shed: list[int] = []
    taken = 0
    for index, deadline in enumerate(deadlines):
        if taken == cap:
            break
        if deadline < limit:
            shed.append(index)
        else:
            taken += 1
    if probe and shed and not taken:
        shed.remove(max(shed, key=deadlines.__getitem__))
        taken = 1
    return Choice(taken, tuple(shed))


def form_mixed(
    deadlines: Sequence[float],
    plain: Choice,
    now: float,
    quantile: Callable[[int], float],
    backlog_s: float = 0.0,
) -> Choice:
    """Return `plain`, or a better batch of its size where the order of service would make somebody late.

    With one promise for all, first come is first due, and `plain` (from `form_batch`) is returned as it is. With
    several, somebody with much time may stand before somebody with little. The order is kept while nobody is late by
    it, batch after batch. Otherwise those go who make the fewest late (`moore_hodgson`), soonest due first; the
    others keep their places, and are shed only when nothing helps any more.
    """
    size = plain.take
    shed = set(plain.shed)
    waiting = [index for index in range(len(deadlines)) if index not in shed]
    if size <= 0 or len(waiting) <= size:
        return plain
    start, each = now + backlog_s, quantile(size)
    if all(deadlines[index] >= start + (1 + rank // size) * each for rank, index in enumerate(waiting)):
        return plain
    due = [deadlines[index] for index in waiting]
    lost = set(moore_hodgson(due, [each / size] * len(waiting), start, step_s=each))
    kept = [index for rank, index in enumerate(waiting) if rank not in lost]
    going = sorted(sorted(kept, key=deadlines.__getitem__)[:size])
    if not going or going == waiting[: len(going)]:
        return plain
    chosen = set(going)
    return Choice(len(going), plain.shed, tuple(index for index in waiting if index not in chosen))


def moore_hodgson(
    deadlines: Sequence[float], costs: Sequence[float], now: float, *, step_s: float = 0.0
) -> tuple[int, ...]:
    """Return the indices to drop so that the fewest requests are late on one server (Moore 1968).

    Serve by deadline; whenever one would finish late, drop the costliest so far. Optimal for the number late;
    O(n log n). `costs` are seconds of the server each, so divide by the number of slots for several. Where work ends
    in batches, `step_s` is how long one takes, and everything in it ends with it.
    """
    heap: list[tuple[float, int, int]] = []
    tie = count()
    finish = 0.0
    dropped: list[int] = []
    for index in sorted(range(len(deadlines)), key=deadlines.__getitem__):
        # Of equals the last one is dropped, who has most time to be served after all.
        heappush(heap, (-costs[index], -next(tie), index))
        finish += costs[index]
        ends = finish if step_s <= 0.0 else ceil(finish / step_s - 1e-9) * step_s
        if now + ends > deadlines[index]:
            cost, _, worst = heappop(heap)
            finish += cost
            dropped.append(worst)
    return tuple(sorted(dropped))
