"""A single server under a virtual clock, and the jobs to offer to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from policies import Job, JobHeap, Policy

T = TypeVar("T")


def take(heap: JobHeap[T]) -> T:
    """Remove the first item and return it."""
    (handle,) = heap.first(1)
    heap.remove(handle)
    return handle.item


class Served(NamedTuple):
    job: Job
    start: float
    end: float


def serve(
    policy: Policy,
    jobs: Iterable[Job],
    *,
    service_s: Callable[[Job], float],
    output_tokens: Callable[[Job], int] = lambda job: int(job.predicted_tokens or 0),
    until: float = float("inf"),
    max_queued: int | None = None,
) -> list[Served]:
    """Serve `jobs` one at a time in the policy's order and return what was served, in order of service.

    Arrivals beyond `max_queued` waiting jobs are refused, as any real queue would.
    """
    pending = sorted(jobs, key=lambda job: job.arrival)
    heap: JobHeap[Job] = JobHeap()
    served: list[Served] = []
    now, following = 0.0, 0
    while now < until and (heap or following < len(pending)):
        if not heap and pending[following].arrival > now:
            now = pending[following].arrival
        while following < len(pending) and pending[following].arrival <= now:
            job = pending[following]
            following += 1
            if max_queued is None or len(heap) < max_queued:
                heap.push(policy.key(job), job)
        if not heap:
            continue
        job = take(heap)
        policy.dispatched(job)
        end = now + service_s(job)
        served.append(Served(job, now, end))
        now = end
        policy.completed(job, output_tokens(job))
    for job in heap:
        policy.removed(job)
    return served
