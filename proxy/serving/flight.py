"""One request on its way: up to an upstream, and down to the client again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from proxy.config.rules import ClassRules
from proxy.dispatch.merged_call import outcome_of
from proxy.dispatch.pool import Pool
from proxy.dispatch.turn import MergeTurn
from proxy.http.cors import Cors, is_preflight
from proxy.http.incoming import Incoming
from proxy.now import monotonic
from proxy.outcome import BadInput, BodyTooLarge, Draining, InternalFault, NoRoute, NoUpstream, Refused, UpstreamBusy
from proxy.request import Ticket
from proxy.serving.fallback import cause_of, is_nobody_there
from proxy.serving.following import Following
from proxy.serving.model_list import is_listing
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.group import OVERLOAD
from proxy.upstream.lease import Lease
from proxy.upstream.outgoing import Outgoing
from proxy.wire.base import BadRequest, Call, Head, Route
from proxy.wire.outline import SURELY_SLIGHT, Outline, is_light, is_slight
from proxy.wire.passthrough import OPAQUE, UNREAD
from proxy.wire.prompt import BYTES_PER_TOKEN
from proxy.wire.registry import likely

__all__ = ["Flight"]

log: Final = logging.getLogger("trimtab.proxy")

_FEW_BYTES: Final = 16_384
"""A body of so many bytes may wait in its parsed form."""
_PROBES: Final = frozenset({"healthz", "readyz"})


class Flight(Following):
    """One request, from `launch` until it is `over`.

    `launch` goes as far as one can without waiting, which mostly is all the way to the upstream. The way back is a
    callback from there: no task has to wake up for an answer that came whole, and that is half of what a request
    costs. Only what must wait (for a place in the queue, for a body, for a slow client, for a second try) is left to
    a task: then the flight is `stuck`, and `proceed` goes on.

    Whatever was taken is given back in `_finish`, and whatever goes wrong ends in `_fail`. The client's connection
    hears of both turns, being stuck and being over, by `moved`.
    """

    __slots__ = ("_exchange", "_home", "_rest", "_route", "_turn", "over")

    def __init__(self, service: Service, incoming: Incoming, transport: asyncio.Transport, ticket: Ticket) -> None:
        super().__init__(service, incoming, transport, ticket)
        self._exchange: Exchange | None = None
        self._home: Pool | None = None
        """The pool that it is for, whichever takes it in the end."""
        self._route: Route | None = None
        """What is asked, once a pool was found for it."""
        self._turn: MergeTurn | None = None
        """The place among others, while an answer split off theirs is waited for."""
        self._rest: Callable[[], Awaitable[None]] | None = None
        """What has to be awaited next."""
        self.over = False
        """Whether everything has been written and given back."""
        service.lifecycle.entered()

    @property
    def stuck(self) -> bool:
        """Whether it goes on only when somebody awaits `proceed`."""
        return self._rest is not None

    def launch(self) -> None:
        """Go as far as one can without waiting. Never raises."""
        try:
            self._depart()
        except Exception as error:
            self._fail(error)

    async def proceed(self) -> None:
        """Wait for what has to be waited for. Raises nothing but CancelledError."""
        try:
            while (rest := self._rest) is not None:
                self._rest = None
                try:
                    await rest()
                except Exception as error:
                    self._fail(error)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """The client left: give everything back."""
        self.ticket.left()
        self._finish()

    # -- the way up ----------------------------------------------------------------------------------------

    def _depart(self) -> None:
        """Find out what is asked, and ask. Raises Refused."""
        incoming, service = self.incoming, self.service
        try:
            incoming.check(service.limits)
        except Refused:
            # What follows on a connection that is read in two ways cannot be trusted.
            self.close = True
            raise
        path = incoming.path
        if path in service.probes and incoming.method in ("GET", "HEAD"):
            self._own(path)
            self._finish()
            return
        if service.tracing is not None:
            self.ticket.trace = service.tracing.begin(incoming.fields.raw)
        if incoming.method == "OPTIONS" and is_preflight(incoming.fields, incoming.length):
            if service.cors is not None:
                self._answer_preflight(service.cors)
                self._finish()
                return
        elif service.keyring is not None:
            self.visit = service.keyring.receive(incoming)
        candidates = service.table.candidates(incoming.method, path)
        if not candidates:
            self.wire = likely(incoming.method, path, incoming.fields.raw)
            raise Refused(NoRoute(path=path, known=service.table.known_paths()))
        candidate = candidates[0]
        self.wire = candidate.wire
        self.place = candidate.place
        self.ticket.route = candidate.route.name
        if service.lifecycle.refusing:
            raise Refused(Draining())
        if not candidate.route.inspect or not incoming.fields.readable:
            self._relay(candidates, candidate, path)
        elif incoming.complete:
            body = incoming.body_now()
            held, size = service.held, len(body)
            if held.now + size > held.limit:
                self._hold_for(candidate, size)
            # What `_hold` does; nearly every request comes this way.
            held.now += size
            self.held = size
            if size <= SURELY_SLIGHT or is_slight(body):
                self._ask(self._inspect(candidates, candidate, path, body))
            else:
                self._rest = partial(self._weigh, candidates, candidate, path, body)
        else:
            incoming.fields.check_patience()
            self._rest = partial(self._read, candidates, candidate, path)

    async def _read(self, candidates: tuple[Candidate, ...], candidate: Candidate, path: str) -> None:
        """Go on once the body is there."""
        service = self.service
        body = await self.incoming.body(service.limits, partial(self._hold_for, candidate), service.joining)
        if is_slight(body):
            self._ask(self._inspect(candidates, candidate, path, body))
        else:
            await self._weigh(candidates, candidate, path, body)

    def _hold_for(self, candidate: Candidate, size: int) -> None:
        """Count bytes of the body as held; who is refused for that is counted for the pool. Raises Refused."""
        try:
            self._hold(size)
        except Refused:
            self.pool = candidate.pool
            raise

    async def _weigh(self, candidates: tuple[Candidate, ...], candidate: Candidate, path: str, body: bytes) -> None:
        """Go on with a body that may be too much to be parsed at once."""
        incoming, service = self.incoming, self.service
        head = Head(incoming.method, path, incoming.target, incoming.fields.forwarded)
        outline = None
        try:
            size = candidate.wire.json_size(head, body)
            document = body if size == len(body) else body[:size]
            if not is_light(document):
                outline = Outline(document, service.limits.max_json_values)
                await self._skim(outline)
        except BadRequest as error:
            self._ask(self._choose(candidates, self._unread(candidate, body, error), path))
            return
        async with service.skimming:
            chosen = self._inspect(candidates, candidate, path, body, outline)
            await asyncio.sleep(0)
        self._ask(chosen)

    def _inspect(
        self,
        candidates: tuple[Candidate, ...],
        candidate: Candidate,
        path: str,
        body: bytes,
        outline: Outline | None = None,
    ) -> Candidate:
        """Parse the body, or what stands for it, and choose the pool by the model that it names."""
        incoming = self.incoming
        if len(body) > self.service.limits.max_body_bytes:
            raise Refused(BodyTooLarge(self.service.limits.max_body_bytes))
        # What is told of the body's form is not true of its outline.
        fields = incoming.fields.forwarded if outline is None or not outline.understood else ()
        head = Head(incoming.method, path, incoming.target, fields)
        try:
            call = candidate.wire.parse(candidate.route, head, body if outline is None else outline.abstract)
        except BadRequest as error:
            call = self._unread(candidate, body, error)
        else:
            call.certain = candidate.certain
            if outline is not None:
                outline.complete(call, body)
                if candidate.by_model:
                    call.named = self._outlined(candidate, outline)
            if call.payload is None:
                self._leave_unread(call)
        return self._choose(candidates, call, path)

    def _choose(self, candidates: tuple[Candidate, ...], call: Call, path: str) -> Candidate:
        """Choose the pool by the model that a call names. Raises Refused."""
        self.call = self.ticket.call = call
        self.ticket.prompt_tokens = call.prompt_tokens
        return self._chosen(candidates, call, path)

    def _relay(self, candidates: tuple[Candidate, ...], candidate: Candidate, path: str) -> None:
        """Have a request passed on whose body nobody looks into. Raises Refused."""
        incoming, ticket = self.incoming, self.ticket
        if candidate.route.inspect:
            ticket.route = UNREAD.name
        if incoming.fields.readable and incoming.length is not None and incoming.method == "POST":
            ticket.prompt_tokens = incoming.length // BYTES_PER_TOKEN
        if not candidate.by_model:
            self._ask(candidate)
        elif candidate.route.name == "models" and is_listing(path) and incoming.method == "GET":
            self._rest = partial(self._list_models, candidates, path)
        else:
            self._rest = partial(self._relay_by_model, candidates, path)

    async def _list_models(self, candidates: tuple[Candidate, ...], path: str) -> None:
        """Answer with the models of all pools."""
        if self.incoming.fields.wishes:
            self._check_wishes(candidates[0].pool)
        if self.visit is not None:
            self.visit.admit(0.0, monotonic())
        self.ticket.queued = False
        body = await self._listed(candidates, path)
        self.pool = candidates[0].pool
        self._write_answer(200, None, b"Content-Type: application/json\r\n", body, len(body))
        self._finish()

    async def _relay_by_model(self, candidates: tuple[Candidate, ...], path: str) -> None:
        """Go on once the model is known."""
        self._ask(await self._seek(candidates, path))

    def _unread(self, candidate: Candidate, body: bytes, error: BadRequest) -> Call:
        """Return the call of a body that cannot be read. Raises Refused where no server could."""
        if error.certain and candidate.certain and self.incoming.fields.says_json:
            self.pool = candidate.pool
            raise _malformed(error) from None
        call = Call(candidate.route, body)
        self._leave_unread(call)
        return call

    def _leave_unread(self, call: Call) -> None:
        """Pass a body on that is not what its path's protocol would send: another server may want just that."""
        call.route = UNREAD
        call.prompt_tokens = len(call.body) // BYTES_PER_TOKEN
        self.ticket.route = UNREAD.name

    def _ask(self, candidate: Candidate) -> None:
        """Have the candidate's upstreams asked. Raises Refused."""
        pool, place = candidate.pool, self.place
        if place is not None:
            if not self._refers(pool, place):
                self.place = None
            elif self._is_to_be_read(place):
                self._rest = partial(self._ask_once_read, candidate)
                return
            elif self._is_to_be_sought(pool, place):
                self._rest = partial(self._ask_once_sought, candidate)
                return
            else:
                pool = self._at_home(pool, place)
        self.pool = self._home = pool
        if self.incoming.fields.wishes:
            self._check_wishes(candidate.pool)
        self._route = candidate.route
        self._through(pool, candidate.route)

    async def _ask_once_read(self, candidate: Candidate) -> None:
        """Go on once the body is there in which ids may stand."""
        await self._whole_body(self.incoming)
        self._ask(candidate)

    async def _ask_once_sought(self, candidate: Candidate) -> None:
        """Go on once the other processes have said what they know."""
        await self._seek_keeper(candidate.pool)
        self._ask(candidate)

    def _through(self, pool: Pool, route: Route) -> None:
        """Take the way to an answer that the route and the pool have. Raises Refused."""
        rules = self._classify(pool)
        if pool.affinity is not None:
            self.ticket.affinity = pool.affinity(self.call, self.incoming.fields)
        if self.place is not None and self._follow(pool, self.place):
            self._rest = partial(self._wait_for_keeper, pool, route)
            return
        if pool.holding.on and pool.holding.elsewhere():
            raise Refused(NoUpstream())
        call = self.call
        if call is not None and call.compat_key is not None and pool.merges(call, self.incoming.target):
            self._share(pool, rules)
        elif route.queued and (route is not OPAQUE or pool.bounds_unknown):
            self._queue(pool, rules)
        else:
            self._pass_by(pool, rules)

    async def _wait_for_keeper(self, pool: Pool, route: Route) -> None:
        """Go on once the one upstream is there that can serve it."""
        await self._await_keeper(pool)
        self._through(pool, route)

    def _queue(self, pool: Pool, rules: ClassRules) -> None:
        """Take a slot, or a place among those who wait for one."""
        _, tokens, give_up = self._job(pool, rules)
        outgoing = self._make_outgoing(rules)
        if self.call is not None and len(self.call.body) > _FEW_BYTES:
            # What waits, and what an upstream takes its time over, is the body alone.
            outgoing.decide_repeat()
            self.call.forget()
        if pool.terms.keepalive_s is not None and self.keepalive is None:
            self._keep_alive(pool.terms.keepalive_s, outgoing)
        lease = self._lease = pool.admit(self.ticket, outgoing, tokens, express=rules.express)
        if lease is None:
            self._rest = partial(self._wait_turn, pool, tokens, rules.express, give_up)
        else:
            self._send(pool, lease, outgoing)

    async def _wait_turn(self, pool: Pool, tokens: float, express: bool, give_up: float) -> None:
        """Go on once there is a slot."""
        outgoing = self.outgoing
        assert outgoing is not None
        self._lease = await pool.enter(self.ticket, outgoing, tokens, express=express, deadline=give_up)
        self._send(pool, self._lease, outgoing)

    def _pass_by(self, pool: Pool, rules: ClassRules) -> None:
        """Take no slot: this is no work for an accelerator."""
        self.ticket.queued = False
        if self.visit is not None:
            self.visit.admit(float(self.ticket.prompt_tokens), monotonic())
        if pool.holding.on:
            self.ticket.give_up = self._until(pool)
            self._rest = partial(self._wait_outside, pool, rules)
        else:
            self._go(pool, rules)

    async def _wait_outside(self, pool: Pool, rules: ClassRules) -> None:
        """Go on once an upstream is there."""
        await pool.holding.outside(self.ticket.arrival, self.ticket.give_up)
        self._go(pool, rules)

    def _go(self, pool: Pool, rules: ClassRules) -> None:
        """Call an upstream without a slot. Raises Refused."""
        ticket = self.ticket
        outgoing = self._make_outgoing(rules)
        lease = self._lease = pool.unqueued(ticket, outgoing)
        ticket.dispatched = monotonic()
        ticket.generation = pool.controller.setpoints.generation
        self._send(pool, lease, outgoing)

    def _send(self, pool: Pool, lease: Lease, outgoing: Outgoing) -> None:
        """Call the upstream: at once where that is plain, else in `_call`."""
        exchange = self._exchange = pool.group.begin(lease, outgoing, self._until(pool))
        if exchange is None:
            self._rest = self._call
        else:
            exchange.watcher = self._arrived

    def _share(self, pool: Pool, rules: ClassRules) -> None:
        """Take a place among those whose calls can be merged with this one."""
        call, wire = self.call, self.wire
        assert call is not None
        assert wire is not None
        job, tokens, give_up = self._job(pool, rules)
        turn = self._turn = MergeTurn(
            self._answered,
            self.ticket,
            job,
            call,
            self._make_outgoing(rules),
            wire,
            until=self._until(pool),
            tokens=tokens,
            express=rules.express,
            deadline=give_up,
        )
        pool.join(turn, (call.compat_key, self.ticket.tenant, self.incoming.fields.identity()))

    # -- the way down --------------------------------------------------------------------------------------

    def _arrived(self) -> None:
        """The upstream answered, or will not: finish here what is whole, and leave the rest to a task."""
        exchange, pool, lease, outgoing = self._exchange, self.pool, self._lease, self.outgoing
        assert exchange is not None
        assert outgoing is not None
        assert pool is not None
        assert lease is not None
        try:
            if exchange.ended and self.keepalive is None and pool.group.done(lease, exchange, outgoing):
                self._whole(exchange)
                self._finish()
                return
        except Exception as error:
            self._fail(error)
            return
        self._rest = self._call
        self.incoming.protocol.moved()

    async def _call(self) -> None:
        """Bring a call to its end that is not over with one whole answer. Raises UpstreamError before any byte."""
        ticket, pool, lease, begun, outgoing = self.ticket, self.pool, self._lease, self._exchange, self.outgoing
        assert pool is not None
        assert lease is not None
        assert outgoing is not None
        group, exchange = pool.group, begun
        if begun is None or not group.done(lease, begun, outgoing):
            self._exchange = None
            until = self._until(pool)
            exchange = await group.call(lease, outgoing, total_deadline=until, begun=begun, key=ticket.affinity)
            self._exchange = exchange
            if exchange.status in OVERLOAD:
                self._spill(pool)
        assert exchange is not None
        if exchange.upgrade_rest is not None:
            await self._tunnel(exchange)
        elif self.committed and not (exchange.status == 200 and exchange.fields.is_event_stream):
            raise UpstreamError(Failure.REFUSED, f"status {exchange.status}")
        elif exchange.ended:
            self._whole(exchange)
        else:
            await self._stream(pool, lease.endpoint, exchange)
        self._finish()

    def _answered(self) -> None:
        """The merged call brought this one's answer, or the reason why there is none."""
        turn, self._turn = self._turn, None
        assert turn is not None
        assert self.pool is not None
        try:
            answer = turn.answer
            if answer is None:
                raise Refused(self.pool.refusal(turn))
            if answer.status in OVERLOAD:
                self._spill(self.pool)
            body = answer.body
            if self.call is not None and self.wire is not None:
                tap = self.ticket.tap = self.wire.tap(self.call, "application/json")
                tap.feed(body)
            self._write_answer(
                answer.status, answer.reason, answer.lines, body, len(body), known_id=answer.request_id_known
            )
            self._finish()
        except Exception as error:
            self._fail(error)

    def _heed(self, exchange: Exchange, body: bytes) -> None:
        """Let the pool see how its upstream answers what could be merged."""
        pool, lease, call, wire = self.pool, self._lease, self.call, self.wire
        if pool is not None and lease is not None and call is not None and wire is not None:
            pool.answered_alone(lease.endpoint, self.incoming.target, wire, call, body, exchange)

    def _spill(self, pool: Pool) -> None:
        """Give up an answer that says `not now` where another pool may be asked. Raises Refused."""
        if (
            not self.committed
            and self._replayable
            and self.keeper is None
            and self.service.table.fallback(pool, "overload") is not None
        ):
            raise Refused(UpstreamBusy(pool.group.retry_after_s()))

    def _own(self, path: str) -> None:
        """Answer the probes of whoever runs us."""
        name = path.rpartition("/")[2]
        ready = name != "readyz" or self.service.ready()
        body = b"ok\n" if ready else b"draining\n" if self.service.lifecycle.draining else b"no upstream is well\n"
        self.ticket.route = name
        head = self.incoming.method == "HEAD"
        status, fields = 200 if ready else 503, b"Content-Type: text/plain\r\n"
        self._write_answer(status, None, fields, b"" if head else body, len(body))

    def _answer_preflight(self, cors: Cors) -> None:
        """Tell a browser what its page may ask, in the upstream's place."""
        self.ticket.route = "preflight"
        self._write_answer(204, None, cors.preflight(self.incoming.fields), b"", None)

    # -- the end -------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        """Ask another pool where there is one for that; else tell the client what went wrong, and end."""
        if isinstance(error, Refused | UpstreamError) and self._route is not None:
            unsolved = self._fall_back(self._route, error)
            if unsolved is not None:
                unsolved = self._hold_on(self._route, unsolved)
            keeper = self.keeper
            if unsolved is not None and keeper is not None and is_nobody_there(unsolved):
                unsolved = self._away(keeper)
            if unsolved is None:
                if self._rest is not None:
                    self.incoming.protocol.moved()
                return
            error = unsolved
        if isinstance(error, Refused):
            self.refuse(self._blamed(error.outcome))
        elif isinstance(error, UpstreamError):
            self.refuse(self._blamed(outcome_of(error)))
        elif isinstance(error, ConnectionError) or self.transport.is_closing():
            # uvloop's word for writing to a transport that was just closed is a RuntimeError.
            self.ticket.left()
            self.close = True
        else:
            log.error("request %s failed inside the proxy", self.ticket.id, exc_info=error)
            if not self.over:
                self.refuse(InternalFault())
        self._finish()

    def _fall_back(self, route: Route, error: Refused | UpstreamError) -> Refused | UpstreamError | None:
        """Try the pools that take what this one could not, one after the other. Returns what the last one said."""
        while (pool := self.pool) is not None and not (self.started or self.committed or self.keeper is not None):
            cause = cause_of(error, repeatable=self._repeatable(pool, error))
            other = self.service.table.fallback(pool, cause) if cause else None
            if other is None:
                break
            self._give_back()
            pool.passed_on(self.ticket, other.name, cause)
            self.pool = other
            try:
                self._through(other, route)
                return None
            except (Refused, UpstreamError) as next_error:
                error = next_error
        return error

    def _hold_on(self, route: Route, error: Refused | UpstreamError) -> Refused | UpstreamError | None:
        """Wait for an upstream to come back, where none could be reached. Returns what is to be told the client."""
        home = self._home
        while home is not None and self.pool is not None and not self.started and is_nobody_there(error):
            ticket, holding = self.ticket, home.holding
            if self.keeper is not None:
                patient = holding.in_time(ticket.arrival, ticket.give_up)
            else:
                nobody = isinstance(error, Refused) and isinstance(error.outcome, NoUpstream)
                if not holding.on and (nobody or self.pool is not home):
                    break
                patient = holding.patient(ticket.arrival, ticket.give_up)
            if not patient:
                break
            self._let_go()
            self.pool.put_back(self.ticket)
            self.keeper = None
            self.pool = home
            try:
                self._through(home, route)
                return None
            except (Refused, UpstreamError) as next_error:
                error = next_error
        return error

    def _give_back(self) -> None:
        """Give back what was taken of the pool and its upstreams, and write nothing into silences any more."""
        self._let_go()
        if self.keepalive is not None:
            self.keepalive.stop()
            self.keepalive = None

    def _let_go(self) -> None:
        """Give back what was taken of the pool and its upstreams."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.abort()
        turn, self._turn = self._turn, None
        if turn is not None and self.pool is not None:
            self.pool.leave(turn)
        lease, self._lease = self._lease, None
        if lease is not None:
            self.ticket.upstream = lease.endpoint.name
            lease.release()

    def _finish(self) -> None:
        """Give back what was taken, and let the pool sum the request up. Safe to call again."""
        if self.over:
            return
        self.over = True
        self._rest = None
        self._give_back()
        self.service.lifecycle.left()
        self.service.held.now -= self.held
        try:
            self._sum_up()
        finally:
            if self.visit is not None:
                self.visit.leave(self.ticket, monotonic())
            self.incoming.protocol.moved()

    def _sum_up(self) -> None:
        """Tell whoever counts, learns, traces and logs what became of the request."""
        pool, ticket, service = self.pool, self.ticket, self.service
        if self.follow_up and pool is not None:
            pool.hooks.followed_up(pool.name, self.follow_up)
        obs = None if pool is None else pool.finished(ticket)
        if obs is None and ticket.route not in _PROBES:
            obs = ticket.observation("", monotonic())
            service.hooks.request_finished(obs, ticket.route, ticket.code)
        if ticket.trace is not None and service.tracing is not None and obs is not None:
            provider = "" if self.wire is None else self.wire.name
            service.tracing.finish(ticket.trace, ticket, obs, self.incoming, provider)
            service.hooks.traced(obs, ticket.trace.hex)
        if service.access_log is not None:
            service.access_log.note(ticket, self.incoming.fields, obs, monotonic())


def _malformed(error: BadRequest) -> Refused:
    return Refused(BadInput(error.message, error.param, error.code or "bad_request"))
