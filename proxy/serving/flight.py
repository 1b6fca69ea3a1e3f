"""One request on its way: up to an upstream, and down to the client again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from controller.observation import Result
from proxy.access.keys import Visit
from proxy.dispatch.merged_call import outcome_of
from proxy.dispatch.pool import Pool
from proxy.http.cors import is_preflight
from proxy.http.incoming import Incoming
from proxy.now import monotonic
from proxy.outcome import Draining, InternalFault, NoRoute, NoUpstream, Outcome, Refused
from proxy.request import Ticket
from proxy.serving.answer import Answer
from proxy.serving.attempt import Attempt, Attempter
from proxy.serving.fallback import cause_of, is_nobody_there
from proxy.serving.following import FollowUp, refers
from proxy.serving.model_list import is_listing
from proxy.serving.naming import seek
from proxy.serving.own import list_models, write_preflight, write_probe
from proxy.serving.plan import check_wishes, is_repeatable
from proxy.serving.reading import hold_for, inspect, is_quick, read, weigh
from proxy.serving.refused import RefusedFor
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import UpstreamError
from proxy.wire.base import Route
from proxy.wire.kept import Place
from proxy.wire.passthrough import UNREAD
from proxy.wire.prompt import BYTES_PER_TOKEN
from proxy.wire.registry import likely

__all__ = ["Flight"]

log: Final = logging.getLogger("trimtab.proxy")


class Flight(Attempter):
    """One request, from `launch` until it is `over`.

    `launch` goes as far as one can without waiting, which mostly is all the way to the upstream. The way back is a
    callback from there: no task has to wake up for an answer that came whole, and that is half of what a request
    costs. Only what must wait (for a place in the queue, for a body, for a slow client, for a second try) is left to
    a task: then the flight is `stuck`, and `proceed` goes on.

    Whatever was taken is given back in `finish`, and whatever goes wrong ends in `fail`. The client's connection
    hears of both turns, being stuck and being over, by `moved`.
    """

    __slots__ = (
        "_answer",
        "_attempt",
        "_follow_up",
        "_home",
        "_place",
        "_pool",
        "_rest",
        "_route",
        "_service",
        "_ticket",
        "_visit",
        "incoming",
        "over",
    )

    def __init__(self, service: Service, incoming: Incoming, transport: asyncio.Transport, ticket: Ticket) -> None:
        self._service = service
        self.incoming = incoming
        self._ticket = ticket
        self._answer = Answer(service, incoming, transport, ticket)
        self._visit: Visit | None = None
        """Who sent it, where API keys are configured."""
        self._place: Place | None = None
        """What its path has to do with ids of what upstreams keep; None for nothing."""
        self._follow_up: FollowUp | None = None
        """What it has to do with them itself."""
        self._home: Pool | None = None
        """The pool that it is for, whichever takes it in the end."""
        self._route: Route | None = None
        """What is asked, once a pool was found for it."""
        self._pool: Pool | None = None
        """The pool that takes it."""
        self._attempt: Attempt | None = None
        """What was made of it there."""
        self._rest: Callable[[], Awaitable[None]] | None = None
        """What has to be awaited next."""
        self.over = False
        """Whether everything has been written and given back."""
        service.lifecycle.entered()

    @property
    def stuck(self) -> bool:
        """Whether it goes on only when somebody awaits `proceed`."""
        return self._rest is not None

    @property
    def close(self) -> bool:
        """Whether the client's connection ends with it."""
        return self._answer.close

    def launch(self) -> None:
        """Go as far as one can without waiting. Never raises."""
        try:
            self._depart()
        except Exception as error:
            self.fail(error)

    async def proceed(self) -> None:
        """Wait for what has to be waited for. Raises nothing but CancelledError."""
        try:
            while (rest := self._rest) is not None:
                self._rest = None
                try:
                    await rest()
                except Exception as error:
                    self.fail(error)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """The client left: give everything back."""
        self._ticket.left()
        self.finish()

    def wait(self, rest: Callable[[], Awaitable[None]]) -> None:
        """Have `rest` awaited next."""
        self._rest = rest

    # -- what is asked, and of whom ------------------------------------------------------------------------

    def _depart(self) -> None:
        """Find out who may be asked, and ask. Raises Refused."""
        incoming, service, ticket = self.incoming, self._service, self._ticket
        try:
            incoming.check(service.limits)
        except Refused:
            # What follows on a connection that is read in two ways cannot be trusted.
            self._answer.close = True
            raise
        path = incoming.path
        if path in service.probes and incoming.method in ("GET", "HEAD"):
            write_probe(service, ticket, incoming, self._answer)
            self.finish()
            return
        if service.tracing is not None:
            ticket.trace = service.tracing.begin(incoming.fields.raw)
        if incoming.method == "OPTIONS" and is_preflight(incoming.fields, incoming.length):
            if service.cors is not None:
                write_preflight(service.cors, ticket, incoming, self._answer)
                self.finish()
                return
        elif service.keyring is not None:
            self._visit = service.keyring.receive(incoming)
        candidates = service.table.candidates(incoming.method, path)
        if not candidates:
            ticket.wire = likely(incoming.method, path, incoming.fields.raw)
            raise Refused(NoRoute(path=path, known=service.table.known_paths()))
        candidate = candidates[0]
        ticket.wire = candidate.wire
        ticket.route = candidate.route.name
        self._place = candidate.place
        if service.lifecycle.refusing:
            raise Refused(Draining())
        if candidate.route.inspect and incoming.fields.readable:
            self._inspect(candidates, candidate)
        else:
            self._relay(candidates, candidate)

    def _inspect(self, candidates: tuple[Candidate, ...], candidate: Candidate) -> None:
        """Have the body looked into, now or once it has come. Raises Refused."""
        incoming, service, ticket = self.incoming, self._service, self._ticket
        if not incoming.complete:
            incoming.fields.check_patience()
            self._rest = partial(self._ask_found, partial(read, service, ticket, incoming, candidates))
            return
        body = incoming.body_now()
        held, size = service.held, len(body)
        if held.now + size > held.limit:
            hold_for(service, incoming, candidate, size)
        # What `Incoming.hold` does; nearly every request comes this way.
        held.now += size
        incoming.held = size
        if is_quick(body):
            self._ask(inspect(service, ticket, incoming, candidates, body))
        else:
            self._rest = partial(self._ask_found, partial(weigh, service, ticket, incoming, candidates, body))

    def _relay(self, candidates: tuple[Candidate, ...], candidate: Candidate) -> None:
        """Have a request passed on whose body nobody looks into. Raises Refused."""
        incoming, ticket = self.incoming, self._ticket
        if candidate.route.inspect:
            ticket.route = UNREAD.name
        if incoming.fields.readable and incoming.length is not None and incoming.method == "POST":
            ticket.prompt_tokens = incoming.length // BYTES_PER_TOKEN
        if not candidate.by_model:
            self._ask(candidate)
        elif candidate.route.name == "models" and is_listing(incoming.path) and incoming.method == "GET":
            self._rest = partial(self._list_models, candidates)
        else:
            self._rest = partial(self._ask_found, partial(seek, self._service, ticket, incoming, candidates))

    async def _ask_found(self, find: Callable[[], Awaitable[Candidate]]) -> None:
        """Go on once it is known what is asked."""
        self._ask(await find())

    async def _list_models(self, candidates: tuple[Candidate, ...]) -> None:
        """Answer with the models of all pools."""
        pool = candidates[0].pool
        self._check_wishes(pool)
        if self._visit is not None:
            self._visit.admit(0.0, monotonic())
        self._ticket.queued = False
        body = await list_models(self._service, self._ticket, self.incoming, candidates, self._visit)
        self._belong(pool)
        if body is None:
            raise Refused(NoUpstream(after_s=pool.group.retry_after_s()))
        self._answer.write(200, None, b"Content-Type: application/json\r\n", body, len(body))
        self.finish()

    def _check_wishes(self, pool: Pool) -> None:
        """Refuse what is asked of us and is not spelled right. Raises Refused."""
        if self.incoming.fields.wishes:
            heard = self._visit is not None or self._service.trust_headers
            check_wishes(self.incoming.fields, pool, heard=heard)

    def _belong(self, pool: Pool) -> None:
        """From now on the request is `pool`'s."""
        self._pool = pool
        if self._visit is not None or self.incoming.fields.claims:
            self._answer.tells_standing = True

    def _ask(self, candidate: Candidate) -> None:
        """Have the candidate's upstreams asked. Raises Refused."""
        pool = candidate.pool
        if self._place is not None and (follow_up := self._following(pool, self._place)) is not None:
            if follow_up.is_unknown(pool):
                self._rest = partial(self._ask_keeper, follow_up, candidate)
                return
            pool = follow_up.home(pool)
        self._home = pool
        self._belong(pool)
        self._check_wishes(candidate.pool)
        self._route = candidate.route
        self._try(pool, candidate.route)

    async def _ask_keeper(self, follow_up: FollowUp, candidate: Candidate) -> None:
        """Go on once it can be known who keeps what the request refers to."""
        await follow_up.find_out(candidate.pool)
        self._ask(candidate)

    def _try(self, pool: Pool, route: Route) -> None:
        """Have `pool` attempt it. Raises Refused and UpstreamError."""
        self._pool = pool
        attempt = self._attempt = Attempt(
            self, self._service, self._ticket, self.incoming, self._answer, self._follow_up, pool
        )
        attempt.begin(route, self._visit)

    def _following(self, pool: Pool, place: Place) -> FollowUp | None:
        """Return what the request has to do with ids that upstreams keep; None for nothing."""
        if self._follow_up is None and refers(place, pool, self._ticket.call):
            self._follow_up = FollowUp(place, self._service, self._ticket, self.incoming)
        return self._follow_up

    @property
    def _keeper(self) -> Endpoint | None:
        """The only upstream that can be asked, where there is only one."""
        return None if self._follow_up is None else self._follow_up.keeper

    # -- the end -------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Ask another pool where there is one for that; else tell the client what went wrong, and end."""
        if isinstance(error, RefusedFor):
            self._belong(error.pool)
        if isinstance(error, Refused | UpstreamError) and self._route is not None:
            unsolved = self._fall_back(self._route, error)
            if unsolved is not None:
                unsolved = self._hold_on(self._route, unsolved)
            if unsolved is None:
                if self._rest is not None:
                    self.incoming.protocol.moved()
                return
            error = unsolved
            follow_up, keeper = self._follow_up, self._keeper
            if follow_up is not None and keeper is not None and is_nobody_there(unsolved):
                error = follow_up.away(keeper)
        if isinstance(error, Refused):
            self._refuse(error.outcome)
        elif isinstance(error, UpstreamError):
            self._refuse(outcome_of(error))
        elif isinstance(error, ConnectionError) or self._answer.lost:
            # uvloop's word for writing to a transport that was just closed is a RuntimeError.
            self._ticket.left()
            self._answer.close = True
        else:
            log.error("request %s failed inside the proxy", self._ticket.id, exc_info=error)
            if not self.over:
                self._refuse(InternalFault())
        self.finish()

    def _refuse(self, outcome: Outcome) -> None:
        """Tell the client what went wrong."""
        outcome = self._service.lifecycle.blamed(outcome)
        told, pool = self._answer.refuse(outcome), self._pool
        if told and pool is not None and outcome.result in (Result.REFUSED, Result.SHED) and outcome.status >= 429:
            pool.hooks.shed(pool.name, outcome.reason)

    def _fall_back(self, route: Route, error: Refused | UpstreamError) -> Refused | UpstreamError | None:
        """Try the pools that take what this one could not, one after the other. Returns what the last one said."""
        ticket, incoming, answer = self._ticket, self.incoming, self._answer
        while (pool := self._pool) is not None and self._keeper is None and not (answer.started or answer.committed):
            outgoing = None if self._attempt is None else self._attempt.outgoing
            cause = cause_of(error, repeatable=is_repeatable(ticket, incoming, outgoing, pool, error))
            other = self._service.table.fallback(pool, cause) if cause else None
            if other is None:
                break
            self._give_back()
            pool.passed_on(ticket, other.name, cause)
            try:
                self._try(other, route)
                return None
            except (Refused, UpstreamError) as next_error:
                error = next_error
        return error

    def _hold_on(self, route: Route, error: Refused | UpstreamError) -> Refused | UpstreamError | None:
        """Wait for an upstream to come back, where none could be reached. Returns what is to be told the client."""
        home = self._home
        while home is not None and self._pool is not None and not self._answer.started and is_nobody_there(error):
            ticket, holding, follow_up = self._ticket, home.holding, self._follow_up
            if self._keeper is not None:
                patient = holding.in_time(ticket.arrival, ticket.give_up)
            else:
                nobody = isinstance(error, Refused) and isinstance(error.outcome, NoUpstream)
                if not holding.on and (nobody or self._pool is not home):
                    break
                patient = holding.patient(ticket.arrival, ticket.give_up)
            if not patient:
                break
            self._let_go()
            self._pool.put_back(ticket)
            if follow_up is not None:
                follow_up.keeper = None
            try:
                self._try(home, route)
                return None
            except (Refused, UpstreamError) as next_error:
                error = next_error
        return error

    def _give_back(self) -> None:
        """Give back what was taken of the pool and its upstreams, and write nothing into silences any more."""
        self._let_go()
        self._answer.keep_still()

    def _let_go(self) -> None:
        """Give back what was taken of the pool and its upstreams."""
        if self._attempt is not None:
            self._attempt.let_go()
            # Each holds the other. What goes round in circles is only found by the collector.
            self._attempt = None

    def finish(self) -> None:
        """Give back what was taken, and let the pool sum the request up. Safe to call again."""
        if self.over:
            return
        self.over = True
        self._rest = None
        self._give_back()
        service, pool, follow_up = self._service, self._pool, self._follow_up
        service.lifecycle.left()
        service.held.now -= self.incoming.held
        try:
            if follow_up is not None and follow_up.result and pool is not None:
                pool.hooks.followed_up(pool.name, follow_up.result)
            service.sum_up(self._ticket, self.incoming, pool)
        finally:
            if self._visit is not None:
                self._visit.leave(self._ticket, monotonic())
            self.incoming.protocol.moved()
