"""One pool's attempt at a request: a place in it, a call of one of its upstreams, and the answer that came."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from controller.observation import Result
from proxy.access.keys import Visit
from proxy.config.rules import ClassRules
from proxy.dispatch.pool import Pool
from proxy.dispatch.turn import MergeTurn
from proxy.http.incoming import Incoming
from proxy.now import monotonic
from proxy.outcome import NoUpstream, Refused, UpstreamBusy
from proxy.request import Ticket
from proxy.serving.answer import Answer
from proxy.serving.following import FollowUp
from proxy.serving.plan import answer_by, classify, is_replayable, make_job, make_outgoing
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.group import OVERLOAD
from proxy.upstream.lease import Lease
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import Route
from proxy.wire.passthrough import OPAQUE, UNREAD

__all__ = ["Attempt", "Attempter"]

_FEW_BYTES: Final = 16_384
"""A body of so many bytes may wait in its parsed form."""


class Attempter(ABC):
    """Who made an attempt, and is told what becomes of it."""

    __slots__ = ()

    @abstractmethod
    def wait(self, rest: Callable[[], Awaitable[None]]) -> None:
        """Have `rest` awaited, which goes on with the attempt."""

    @abstractmethod
    def finish(self) -> None:
        """The answer is written: give everything back."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """It came to nothing because of `error`: make another where that may help, else tell the client."""


class Attempt:
    """What one pool has of a request, and what the request has of the pool until `let_go`."""

    __slots__ = (
        "_answer",
        "_by",
        "_exchange",
        "_follow_up",
        "_incoming",
        "_lease",
        "_pool",
        "_service",
        "_ticket",
        "_turn",
        "outgoing",
    )

    def __init__(
        self,
        by: Attempter,
        service: Service,
        ticket: Ticket,
        incoming: Incoming,
        answer: Answer,
        follow_up: FollowUp | None,
        pool: Pool,
    ) -> None:
        self._by = by
        self._service = service
        self._ticket = ticket
        self._incoming = incoming
        self._answer = answer
        self._follow_up = follow_up
        """What the request has to do with ids of what upstreams keep; None for nothing."""
        self._pool = pool
        self._turn: MergeTurn | None = None
        """The place among others, while an answer split off theirs is waited for."""
        self._lease: Lease | None = None
        self._exchange: Exchange | None = None
        self.outgoing: Outgoing | None = None
        """What the upstream is asked, once that is known."""

    def let_go(self) -> None:
        """Give back what was taken of the pool and its upstreams. Safe to call again."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
        turn, self._turn = self._turn, None
        if turn is not None:
            self._pool.leave(turn)
        lease, self._lease = self._lease, None
        if lease is not None:
            self._ticket.upstream = lease.endpoint.name
            lease.release()

    @property
    def _keeper(self) -> Endpoint | None:
        """The only upstream that can be asked, where there is only one."""
        return None if self._follow_up is None else self._follow_up.keeper

    # -- the way up ----------------------------------------------------------------------------------------

    def begin(self, route: Route, visit: Visit | None) -> None:
        """Take the way to an answer that the route and the pool have. Raises Refused and UpstreamError."""
        pool, ticket, incoming, follow_up = self._pool, self._ticket, self._incoming, self._follow_up
        rules = classify(ticket, incoming.fields, pool, visit, trusted=self._service.trust_headers)
        call = ticket.call
        if pool.affinity is not None:
            ticket.affinity = pool.affinity(call, incoming.fields)
        if follow_up is not None and follow_up.look(pool):
            ticket.give_up = answer_by(ticket, incoming.fields, pool)
            self._by.wait(partial(self._begin_with_keeper, follow_up, route, visit))
            return
        if pool.holding.on and pool.holding.elsewhere():
            raise Refused(NoUpstream())
        if call is not None and call.compat_key is not None and pool.merges(call, incoming.target):
            self._share(rules, visit)
        elif route.queued and (route is not OPAQUE or pool.bounds_unknown):
            self._queue(rules, visit)
        else:
            self._pass_by(rules, visit)

    async def _begin_with_keeper(self, follow_up: FollowUp, route: Route, visit: Visit | None) -> None:
        """Begin once the one upstream is there that can serve it."""
        await follow_up.await_keeper(self._pool)
        self.begin(route, visit)

    def _queue(self, rules: ClassRules, visit: Visit | None) -> None:
        """Take a slot, or a place among those who wait for one. Raises Refused."""
        pool, ticket, answer = self._pool, self._ticket, self._answer
        tokens = make_job(ticket, self._incoming.fields, pool, rules, visit)
        outgoing = self._describe(rules)
        call = ticket.call
        if call is not None and len(call.body) > _FEW_BYTES:
            # What waits, and what an upstream takes its time over, is the body alone.
            outgoing.decide_repeat()
            call.forget()
        if pool.terms.keepalive_s is not None and not answer.kept_alive:
            answer.keep_alive(pool.terms.keepalive_s, outgoing)
        lease = self._lease = pool.admit(ticket, outgoing, tokens, express=rules.express)
        if lease is None:
            self._by.wait(partial(self._wait_turn, outgoing, tokens, rules.express))
        else:
            self._send(lease, outgoing)

    async def _wait_turn(self, outgoing: Outgoing, tokens: float, express: bool) -> None:
        """Go on once there is a slot."""
        ticket = self._ticket
        lease = await self._pool.enter(ticket, outgoing, tokens, express=express, deadline=ticket.give_up)
        self._lease = lease
        self._send(lease, outgoing)

    def _pass_by(self, rules: ClassRules, visit: Visit | None) -> None:
        """Take no slot: this is no work for an accelerator. Raises Refused."""
        ticket, holding = self._ticket, self._pool.holding
        ticket.queued = False
        if visit is not None:
            visit.admit(float(ticket.prompt_tokens), monotonic())
        if holding.on:
            ticket.give_up = answer_by(ticket, self._incoming.fields, self._pool)
            self._by.wait(partial(self._wait_outside, rules))
        else:
            self._go(rules)

    async def _wait_outside(self, rules: ClassRules) -> None:
        """Go on once an upstream is there."""
        await self._pool.holding.outside(self._ticket.arrival, self._ticket.give_up)
        self._go(rules)

    def _go(self, rules: ClassRules) -> None:
        """Call an upstream without a slot. Raises Refused."""
        pool, ticket = self._pool, self._ticket
        outgoing = self._describe(rules)
        lease = self._lease = pool.unqueued(ticket, outgoing)
        ticket.dispatched = monotonic()
        ticket.generation = pool.controller.setpoints.generation
        self._send(lease, outgoing)

    def _describe(self, rules: ClassRules) -> Outgoing:
        """Return what the upstream is asked. Raises Refused."""
        outgoing = self.outgoing = make_outgoing(self._service, self._ticket, self._incoming, rules, self._keeper)
        return outgoing

    def _send(self, lease: Lease, outgoing: Outgoing) -> None:
        """Call the upstream: at once where that is plain, else in `_call`."""
        until = answer_by(self._ticket, self._incoming.fields, self._pool)
        exchange = self._exchange = self._pool.group.begin(lease, outgoing, until)
        if exchange is None:
            self._by.wait(self._call)
        else:
            exchange.watcher = self._arrived

    def _share(self, rules: ClassRules, visit: Visit | None) -> None:
        """Take a place among those whose calls can be merged with this one. Raises Refused."""
        pool, ticket, fields = self._pool, self._ticket, self._incoming.fields
        tokens = make_job(ticket, fields, pool, rules, visit)
        job, call, wire = ticket.job, ticket.call, ticket.wire
        assert job is not None
        assert call is not None
        assert wire is not None
        turn = self._turn = MergeTurn(
            self._answered,
            ticket,
            job,
            call,
            self._describe(rules),
            wire,
            until=answer_by(ticket, fields, pool),
            tokens=tokens,
            express=rules.express,
            deadline=ticket.give_up,
        )
        pool.join(turn, (call.compat_key, ticket.tenant, fields.identity()))

    # -- the way down --------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """The upstream answered, or will not: finish here what is whole, and leave the rest to a task."""
        exchange, lease, outgoing = self._exchange, self._lease, self.outgoing
        assert exchange is not None
        assert outgoing is not None
        assert lease is not None
        try:
            if exchange.ended and not self._answer.kept_alive and self._pool.group.done(lease, exchange, outgoing):
                self._write_whole(lease.endpoint, exchange)
                self._by.finish()
                return
        except Exception as error:
            self._by.fail(error)
            return
        self._by.wait(self._call)
        self._incoming.protocol.moved()

    async def _call(self) -> None:
        """Bring a call to its end that is not over with one whole answer. Raises UpstreamError before any byte."""
        ticket, pool, lease, begun, outgoing = self._ticket, self._pool, self._lease, self._exchange, self.outgoing
        assert lease is not None
        assert outgoing is not None
        group, exchange, answer = pool.group, begun, self._answer
        if begun is None or not group.done(lease, begun, outgoing):
            self._exchange = None
            until = answer_by(ticket, self._incoming.fields, pool)
            exchange = await group.call(lease, outgoing, total_deadline=until, begun=begun, key=ticket.affinity)
            self._exchange = exchange
            if exchange.status in OVERLOAD:
                self._spill()
        assert exchange is not None
        if exchange.upgrade_rest is not None:
            await answer.tunnel(exchange)
        elif answer.committed and not (exchange.status == 200 and exchange.fields.is_event_stream):
            raise UpstreamError(Failure.REFUSED, f"status {exchange.status}")
        elif exchange.ended:
            self._write_whole(lease.endpoint, exchange)
        else:
            await self._write_stream(lease.endpoint, exchange, outgoing)
        self._by.finish()

    def _write_whole(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Pass on an answer whose end has come, once what there is to learn from it is known."""
        pool, call, wire = self._pool, self._ticket.call, self._ticket.wire
        if call is not None and call.compat_key is not None and wire is not None:
            known = call.route is not UNREAD and not exchange.fields.encoded
            if known:
                pool.answered_alone(endpoint, self._incoming.target, wire, call, exchange.peek(), exchange)
        follow_up = self._follow_up
        if follow_up is not None and (watch := follow_up.watch(pool, endpoint.name, exchange)) is not None:
            watch.feed(exchange.peek())
            follow_up.watched()
        self._answer.write_whole(exchange)

    async def _write_stream(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing) -> None:
        """Pass on an answer as it comes, and tell the pool how it ended."""
        pool, answer, ticket, follow_up = self._pool, self._answer, self._ticket, self._follow_up
        began = None
        if ticket.job is not None and ticket.dispatched is not None:
            began = partial(pool.controller.first_token, endpoint.name, ticket.dispatched)
        watch = None if follow_up is None else follow_up.watch(pool, endpoint.name, exchange)
        try:
            await answer.write_stream(exchange, marked=outgoing.mark() in endpoint.marks, began=began, watch=watch)
        finally:
            if follow_up is not None:
                follow_up.watched()
            if answer.broken:
                if exchange.fault is None:
                    pool.group.broke(endpoint, exchange)
            elif (
                answer.complete
                and exchange.error is None
                and pool.group.over(endpoint, exchange, outgoing, ticket.tap)
            ):
                ticket.ended(Result.FAILED, exchange.status)
                ticket.reason = "error_in_answer"

    def _answered(self) -> None:
        """The merged call brought this one's answer, or the reason why there is none."""
        turn, self._turn = self._turn, None
        pool, ticket = self._pool, self._ticket
        assert turn is not None
        try:
            part = turn.answer
            if part is None:
                raise Refused(pool.refusal(turn))
            if part.status in OVERLOAD:
                self._spill()
            body = part.body
            if ticket.call is not None and ticket.wire is not None:
                tap = ticket.tap = ticket.wire.tap(ticket.call, "application/json")
                tap.feed(body)
            self._answer.write(part.status, part.reason, part.lines, body, len(body), known_id=part.request_id_known)
            self._by.finish()
        except Exception as error:
            self._by.fail(error)

    def _spill(self) -> None:
        """Give up an answer that says `not now` where another pool may be asked. Raises Refused."""
        pool = self._pool
        if (
            not self._answer.committed
            and is_replayable(self._ticket, self._incoming)
            and self._keeper is None
            and self._service.table.fallback(pool, "overload") is not None
        ):
            raise Refused(UpstreamBusy(pool.group.retry_after_s()))
