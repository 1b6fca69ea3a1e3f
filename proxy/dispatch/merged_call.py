"""One merged upstream call, from the batch to everybody's own answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import ceil, log2
from typing import TYPE_CHECKING, Final

from proxy.dispatch.merge import Batch
from proxy.dispatch.parts import PartHeads
from proxy.dispatch.shared_head import shared_lines
from proxy.dispatch.trust import MergeTrust
from proxy.dispatch.turn import Answer, MergeTurn, SharedRun
from proxy.http.fields import lines_of
from proxy.now import monotonic
from proxy.outcome import InternalFault, NoUpstream, Outcome, OutOfConnections, UpstreamFailed, UpstreamTimeout
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.group import MOST_DEATHS, Group
from proxy.upstream.lease import Lease
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import MergeMismatch, Reply, WireFormat

if TYPE_CHECKING:
    from proxy.trace import SharedCall

__all__ = ["MAX_ANSWER_BYTES", "MergeRun", "outcome_of"]

log = logging.getLogger("trimtab.proxy")

MAX_ANSWER_BYTES: Final = 1 << 30
"""A merged answer is held in memory, so it may not be larger."""

_SHARED: Final = frozenset({401, 402, 403, 404, 405, 429, 503})
"""Answers that say nothing about any item in particular: everybody gets them."""
_ITEM_AT_FAULT: Final = frozenset({400, 413, 422})
_KINDS = {
    400: "invalid_request",
    401: "unauthorized",
    402: "payment_required",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    422: "invalid_request",
    429: "rate_limited",
    503: "unavailable",
}
_REPLACED: Final = (b"accept-encoding:", b"accept:")


def outcome_of(error: UpstreamError) -> Outcome:
    """Return what a failed upstream call means for the client that waits for it."""
    if error.is_timeout:
        return UpstreamTimeout(error.failure.value)
    if error.failure is Failure.NO_DESCRIPTORS:
        return OutOfConnections()
    return UpstreamFailed(error.failure.value)


def _target(member: MergeTurn) -> str:
    return member.outgoing.target.decode("utf-8", "surrogateescape")


class MergeRun(SharedRun):
    """Sends a batch and hands out the parts.

    When the call fails in a way that one item may be to blame for, the batch is halved until the guilty are alone.
    Half a batch that went well needs no proof against the other half, so one poisoned item among n costs at most
    2*log2(n) more calls. Where the upstream's own failure is as likely (5xx, broken connections), that is also the
    limit; where the answer blames the request (400, 413, 422), everybody's innocence is worth up to 2n calls.
    A batch whose answer does not map onto its items is sent again one by one.
    """

    def __init__(
        self,
        group: Group,
        wire: WireFormat,
        batch: Batch,
        members: Sequence[MergeTurn],
        lease: Lease,
        until: float,
        trust: MergeTrust,
        heads: dict[tuple[str, str], list[bytes]],
        name: str,
    ) -> None:
        self._group = group
        self._trust = trust
        self._heads = heads
        self._id_line = b"X-Request-Id: %b\r\n" % name.encode("ascii")
        self.vouched = True
        """Whether the operator or a profile has it merged, and not just the look of an answer."""
        self.checked: int | None = None
        """Which member is asked again alone once everybody has an answer; None for none."""
        self._check: tuple[MergeTurn, Reply] | None = None
        """That member and its part."""
        self._wire = wire
        self._members = list(members)
        self._lease = lease
        self._until = until
        self.batch = batch
        self._deaths = 0
        """Upstreams that had a part of it and broke off: one of the inputs may be what they die of."""
        self.extra_calls = 0
        """Calls beyond the first."""
        self._extra_limit = 2 * ceil(log2(len(members))) + 1 if len(members) > 1 else 0
        self.shared: SharedCall | None = None
        """What is told of it, where any of its members is traced."""
        self._task: asyncio.Task[None] | None = None
        self._last: Answer | UpstreamError | None = None
        """The latest failure."""

    def start(self, loop: asyncio.AbstractEventLoop, done: Callable[[MergeRun], None]) -> None:
        """Send it; `done` is called when everybody has an answer, or nobody is left to have one."""
        for member in self._members:
            member.run = self
        self._task = task = loop.create_task(self._run())
        # Not in a `finally` of the task: one that is cancelled before its first step never enters it.
        task.add_done_callback(lambda task: self._over(task, done))

    def _over(self, task: asyncio.Task[None], done: Callable[[MergeRun], None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a merged call failed inside the proxy", exc_info=error)
        self._fail_rest(UpstreamFailed("given up") if error is None else InternalFault())
        self._lease.release()
        if self.shared is not None:
            answered = any(member.answer is not None for member in self._members)
            self.shared.over(1 + self.extra_calls, "" if answered else "no_answer")
        # Each holds the other. What goes round in circles is only found by the collector, whole requests with it.
        self._task = None
        for member in self._members:
            member.run = None
        done(self)

    def member_gone(self) -> None:
        """A client left. When it was the last one, the call is given up."""
        if all(member.settled for member in self._members):
            self.cancel()

    def cancel(self) -> None:
        """Give the call up; whoever still waits is told so."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        if not await self._try(self._members):
            await self._split(self._members)
        if self._check is not None:
            await self._ask_again(*self._check)

    async def _split(self, members: Sequence[MergeTurn]) -> None:
        """Find the guilty among `members`, whose call has just failed or would fail."""
        members = [member for member in members if not member.settled]
        if len(members) < 2:
            await self._finish(members)
            return
        half = len(members) // 2
        left, right = members[:half], members[half:]
        if await self._retry(left):
            await self._split(right)
            return
        left_answer = self._last
        right_fine = await self._retry(right)
        right_answer = self._last
        self._last = left_answer
        await self._blame(left)
        if not right_fine:
            self._last = right_answer
            await self._blame(right)

    async def _blame(self, members: Sequence[MergeTurn]) -> None:
        """`members` have just failed together with `_last`."""
        if len(members) == 1 or self.extra_calls >= self._extra_limit:
            self._settle(members)
        else:
            await self._split(members)

    async def _finish(self, members: Sequence[MergeTurn]) -> None:
        """A single one that must be guilty still gets an answer of its own."""
        if members and not await self._retry(members):
            self._settle(members)

    async def _retry(self, members: Sequence[MergeTurn]) -> bool:
        if self.extra_calls >= self._extra_limit:
            self._settle(members)
            return True
        self.extra_calls += 1
        return await self._try(members)

    async def _try(self, members: Sequence[MergeTurn]) -> bool:
        """Send `members` together. Returns whether they are settled; otherwise one of them may be to blame."""
        members = [member for member in members if not member.settled]
        if not members:
            return True
        first = members[0]
        calls = [member.call for member in members]
        outgoing = first.outgoing if len(members) == 1 else self._merged(members)
        try:
            exchange = await self._group.call(
                self._lease, outgoing, total_deadline=self._until, gather=True, limit=MAX_ANSWER_BYTES
            )
        except UpstreamError as error:
            self._last = error
            self._deaths += error.deaths
            if len(members) == 1 or error.is_timeout or error.unsent or self._deaths >= MOST_DEATHS:
                self._settle(members)
                return True
            return False
        body = exchange.take()
        fields = exchange.fields
        answer = Answer(exchange.status, exchange.reason, exchange.lines, body, fields.has_request_id)
        for member in members:
            member.ticket.upstream = self._lease.endpoint.name
        if len(members) == 1:
            first.resolve(answer)
            return True
        if not 200 <= exchange.status < 300:
            if exchange.status < 400:
                # Where to go instead is each request's own affair.
                await self._singly(members)
                return True
            self._last = answer
            if exchange.status in _SHARED:
                self._settle(members)
                return True
            if exchange.status in _ITEM_AT_FAULT:
                self._extra_limit = max(self._extra_limit, 2 * len(self._members))
            return False
        try:
            replies = self._wire.split(calls, exchange.status, body, fields.fields)
        except MergeMismatch as error:
            self._trust.undivided(
                self._lease.endpoint.name, first.call.route.name, _target(first), str(error), monotonic()
            )
            await self._singly(members)
            return True
        if self._trust.doubting:
            self._trust.divided(first.call.route.name, _target(first))
        known = (self._lease.endpoint.name, first.call.route.name)
        heads = PartHeads(exchange.lines, self._heads.get(known, ()))
        for member, reply in zip(members, replies, strict=True):
            reason = exchange.reason if reply.status == exchange.status else None
            member.resolve(Answer(reply.status, reason, heads.lines(reply), reply.body))
        self._heads[known] = heads.unknown
        if self.checked is not None and not first.call.route.generates and members == self._members:
            self._check = members[self.checked], replies[self.checked]
        return True

    async def _ask_again(self, member: MergeTurn, part: Reply) -> None:
        """Ask for one that has its answer once more, alone, and compare. It is nobody's answer any more."""
        lease, upstream = self._lease, self._lease.endpoint.name
        try:
            exchange = await self._group.call(
                lease, member.outgoing, total_deadline=self._until, gather=True, limit=MAX_ANSWER_BYTES
            )
        except UpstreamError as error:
            log.info("a request could not be asked again alone at %s: %s", upstream, error)
            return
        body = exchange.take()
        if lease.endpoint.name != upstream or not 200 <= exchange.status < 300:
            return
        if not self._wire.alike(part, body, exchange.fields.fields):
            self._trust.differed(upstream, member.call.route.name, _target(member), monotonic(), vouched=self.vouched)

    async def _singly(self, members: Sequence[MergeTurn]) -> None:
        """Never guess whose result is whose."""
        self._extra_limit += len(members)
        for member in members:
            if not member.settled:
                self.extra_calls += 1
                await self._try([member])

    def _merged(self, members: Sequence[MergeTurn]) -> Outgoing:
        calls = [member.call for member in members]
        body = self._wire.merge(calls)
        first = members[0].outgoing
        replaced = self._wire.merge_headers(calls, body)
        names = tuple(name + b":" for name, _ in replaced) + _REPLACED
        common = shared_lines(members)
        kept = [line for line in common.splitlines(True) if not line.lower().startswith(names)]
        kept_lines = b"".join(kept) + self._id_line
        if self.shared is not None:
            kept_lines = self.shared.onto(kept_lines)
        first_call = calls[0]
        own = lines_of(replaced) if replaced else b"Accept: application/json\r\nAccept-Encoding: identity\r\n"
        merged = Outgoing(
            first.method,
            first.target,
            kept_lines + own,
            body=body,
            authorization=first.authorization,
            replayable=True,
            is_json=first.is_json,
        )
        merged.means(self._wire, first_call)
        return merged

    def _settle(self, members: Sequence[MergeTurn]) -> None:
        """Give `members` the failure they had together.

        What the upstream says of a call that several share may be about any of them, so they are told its status in
        words of our own.
        """
        last = self._last
        if isinstance(last, Answer):
            last = self._in_own_words(last)
        for member in members:
            if member.settled:
                continue
            if isinstance(last, Answer):
                member.resolve(last)
            elif last is not None:
                member.fail(outcome_of(last))
            else:
                member.fail(NoUpstream())

    def _in_own_words(self, answer: Answer) -> Answer:
        text = f"The inference server answered with status {answer.status} to a call that several requests shared."
        reply = self._wire.error(answer.status, _KINDS.get(answer.status, "upstream_error"), text)
        return Answer(answer.status, None, PartHeads(answer.lines).lines(reply), reply.body)

    def _fail_rest(self, outcome: Outcome) -> None:
        for member in self._members:
            if not member.settled:
                member.fail(outcome)
