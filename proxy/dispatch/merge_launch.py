"""The merged calls of a pool: who takes a closed batch, and what is given back when it is answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from proxy.clock import Clock
from proxy.dispatch.merge import Batch, by_length
from proxy.dispatch.merged_call import MergeRun
from proxy.dispatch.queue import Drop
from proxy.dispatch.trust import MergeTrust
from proxy.dispatch.turn import MergeTurn
from proxy.observe.hooks import Hooks
from proxy.upstream.group import Group
from proxy.upstream.lease import MERGED, Ledger
from proxy.upstream.slots import MergeSlots

if TYPE_CHECKING:
    from proxy.observe.tracing import Tracing

__all__ = ["MergeRuns"]


class MergeRuns:
    """Sends closed batches to upstreams that have a slot."""

    def __init__(
        self,
        pool: str,
        group: Group,
        slots: MergeSlots,
        ledger: Ledger,
        trust: MergeTrust,
        *,
        hooks: Hooks,
        clock: Clock,
    ) -> None:
        self._pool = pool
        self._group = group
        self._slots = slots
        self._ledger = ledger
        self._trust = trust
        self._heads: dict[tuple[str, str], list[bytes]] = {}
        """The fields of the last answer of each upstream and operation that nobody here knows."""
        self._name = uuid4().hex[:16]
        self._sent = self._unchecked = 0
        self._hooks = hooks
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._runs: set[MergeRun] = set()
        self.tracing: Tracing | None = None
        """Who follows requests; None where nobody does."""

    def send(self, batch: Batch, *, pads: bool, check_every: int = 0, vouched: bool = True) -> None:
        """Call an upstream with `batch`, the longest first where it pads them all to the longest.

        One in `check_every` merged calls has one of its members asked again alone; none with 0.
        """
        members = cast("list[MergeTurn]", batch.members)
        if pads:
            members.sort(key=by_length)
        one = members[0]
        endpoint = self._group.pick(batch.tokens, self._slots.full(), one.ticket.affinity, one.outgoing)
        if endpoint is None:
            for member in members:
                member.dropped(Drop.NO_UPSTREAM)
            return
        now = self._clock.now()
        lease = self._ledger.open(endpoint, batch.tokens, MERGED, batch.items, now)
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
        self._sent += 1
        run = MergeRun(
            self._group, members[0].wire, batch, members, lease, until, self._trust, self._heads,
            f"{self._name}-{self._sent}",
        )  # fmt: skip
        if check_every and len(members) > 1:
            self._unchecked += 1
            if self._unchecked >= check_every:
                self._unchecked = 0
                run.checked = self._sent % len(members)
                run.vouched = vouched
        if self.tracing is not None:
            run.shared = self.tracing.share(
                [member.ticket for member in members],
                batch.items,
                batch.closed_by,
                held_since=batch.held_since,
                wire=one.wire.name,
                upstream=endpoint.name,
                now=now,
            )
        self._runs.add(run)
        run.start(self._loop, self._runs.discard)

    def cancel(self) -> None:
        """Give all of them up."""
        for run in tuple(self._runs):
            run.cancel()
