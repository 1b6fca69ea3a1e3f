"""The merged calls of a pool: who takes a closed batch, and what is given back when it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from proxy.clock import Clock
from proxy.hooks import Hooks
from proxy.lease import Lease, LeaseBook
from proxy.merger import Batch, by_length
from proxy.merging import MergeRun
from proxy.queue import Drop
from proxy.slots import MergeSlots
from proxy.turn import MergeTurn
from proxy.underway import UnderWay
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.group import Group

if TYPE_CHECKING:
    from proxy.tracing import Tracing

__all__ = ["MergeRuns"]


class MergeRuns:
    """Sends closed batches to upstreams that have a slot, and tells `on_freed` when one is free again."""

    def __init__(
        self,
        pool: str,
        group: Group,
        slots: MergeSlots,
        leases: LeaseBook,
        under_way: UnderWay,
        *,
        hooks: Hooks,
        clock: Clock,
        on_freed: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._group = group
        self._slots = slots
        self._leases = leases
        self._under_way = under_way
        self._hooks = hooks
        self._clock = clock
        self._on_freed = on_freed
        self._loop = asyncio.get_running_loop()
        self._runs: set[MergeRun] = set()
        self.tracing: Tracing | None = None
        """Who follows requests; None where nobody does."""

    def send(self, batch: Batch, *, pads: bool) -> None:
        """Call an upstream with `batch`, the shortest first where it pads them all to the longest."""
        members = cast("list[MergeTurn]", batch.members)
        if pads:
            members.sort(key=by_length)
        endpoint = self._group.pick(batch.tokens, self._slots.full(), members[0].ticket.affinity)
        if endpoint is None:
            for member in members:
                member.dropped(Drop.NO_UPSTREAM)
            return
        now = self._clock.now()
        lease = self._leases.grant(endpoint, batch.tokens, partial(self._released, endpoint))
        self._slots.taken(endpoint)
        self._under_way.took(lease, now, batch.items)
        self._hooks.batch_dispatched(self._pool, batch.items, batch.closed_by)
        if batch.held_since is not None:
            first = min([member.job.arrival for member in members])
            self._hooks.window_waited(self._pool, max(0.0, now - max(batch.held_since, first)))
        until = now
        for member in members:
            ticket = member.ticket
            ticket.dispatched = now
            ticket.batch = batch.items
            ticket.generation = batch.generation
            ticket.upstream = endpoint.name
            until = max(until, member.until)
        run = MergeRun(self._group, members[0].wire, batch, members, lease, until)
        if self.tracing is not None:
            run.shared = self.tracing.share(batch, members, endpoint.name, now)
        self._runs.add(run)
        run.start(self._loop, self._runs.discard)

    def cancel(self) -> None:
        """Give all of them up."""
        for run in tuple(self._runs):
            run.cancel()

    def _released(self, endpoint: Endpoint, lease: Lease) -> None:
        self._under_way.gave_back(lease)
        self._slots.freed(endpoint)
        self._on_freed()
