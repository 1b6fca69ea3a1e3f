"""A pool's upstreams together: whom to ask, how long to wait, and whether to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import time
from typing import Any, Final

from proxy.http.fields import lines_of
from proxy.now import monotonic
from proxy.request import AffinityKey
from proxy.upstream.connection import Connection
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import EXPECTS_ANYTHING, EXPECTS_STREAM, EXPECTS_WHOLE, Exchange, Patience
from proxy.upstream.lease import Lease
from proxy.upstream.outgoing import Outgoing
from proxy.upstream.repute import Repute
from proxy.upstream.retry import RetryBudget
from proxy.upstream.retry_after import retry_after_s
from proxy.upstream.routing import Router
from proxy.upstream.verdicts import Verdicts
from proxy.wire.base import Repeat, Tap

__all__ = ["ALL_CAUSES", "MOST_DEATHS", "OVERLOAD", "Group"]

OVERLOAD: Final = frozenset({429, 503, 529})
"""Answers that mean: not now."""
_TURNED_AWAY: Final = frozenset({401, 403, 404, 405})
"""Answers that may be this upstream's alone: it has another key, another model, another version."""
ALL_CAUSES: Final = frozenset({"connect", "overload", "refusal", "failure", "broken"})
"""What a second try may be made for."""
_BROKEN_GATEWAY: Final = frozenset({502, 504})
_CONTINUE_S: Final = 1.0
"""How long to wait for an upstream's 100 before the body is sent anyway (RFC 9110 section 10.1.1)."""

_OPINIONS_PER_S: Final = 10.0
"""How often a second, at most, another upstream is asked whether it would turn a request away, too."""
MOST_DEATHS: Final = 2
"""So many servers that read a request and died, perhaps of it, are enough."""
_RACE_S: Final = 0.5
"""A kept connection that closes so soon after a request was sent was closing already, most likely."""
_LOOK_EVERY_S: Final = 0.05


class Group:
    """Sends calls to endpoints and learns from what comes back.

    A call is tried again only while nothing of its answer has been passed on, which is always so in here, and only
    where that does no harm: what no upstream can have read may always be sent again, what one answered with a failure
    unless it changed something there (`Repeat`), and what one died of only where asking twice is as good as once. A
    kept connection that the other side had closed is not held against anybody and costs no budget; everything else
    does.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        router: Router,
        patience: Patience,
        budget: RetryBudget,
        *,
        max_retries: int = 1,
        causes: frozenset[str] = ALL_CAUSES - {"broken"},
        on_retry: Callable[[], None] = lambda: None,
        on_vain: Callable[[str, int], None] = lambda upstream, status: None,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.patience = patience
        self._router = router
        self._budget = budget
        self._aborted = False
        self._max_retries = max_retries
        self._causes = causes
        self._on_retry = on_retry
        self._on_vain = on_vain
        """Told of each call whose failure nobody else hears of, as another one is made."""
        self._opinions = RetryBudget(ratio=0.0, min_per_s=_OPINIONS_PER_S, now=monotonic())
        self.repute = Repute()
        self.verdicts = Verdicts()
        self._loop = asyncio.get_running_loop()
        self.on_trouble: Callable[[], None] = lambda: None
        """Called when an endpoint accepts no connection, does again, or is ejected."""

    def pick(
        self,
        work: float = 0.0,
        exclude: Sequence[Endpoint] = (),
        key: AffinityKey | None = None,
        outgoing: Outgoing | None = None,
    ) -> Endpoint | None:
        """Return whom to ask for a call of `work` tokens, None when nobody may be asked.

        `outgoing` is what is to be asked; whoever alone turns that away, or fails fast, is passed over. Where one
        of them keeps what it refers to, nobody else is asked.
        """
        if self._aborted:
            return None
        if outgoing is not None and outgoing.keeper is not None:
            keeper = outgoing.keeper
            return keeper if keeper not in exclude and keeper.reachable else None
        endpoints, now = self.endpoints, monotonic()
        if len(endpoints) > 1:
            repute = self.repute
            errand = outgoing.errand() if outgoing is not None and repute.knows_misfits else None
            homed = isinstance(key, bytes)
            avoided = repute.avoid(endpoints, errand, now, exclude, homed=homed)
            if avoided or homed:
                others = (*exclude, *avoided)
                found = self._router.pick(endpoints, now, work=work, exclude=others, key=key)
                if found is not None:
                    if homed:
                        repute.asked(found, now)
                    return found
        return self._router.pick(endpoints, now, work=work, exclude=exclude, key=key)

    def called(self, name: str) -> Endpoint | None:
        """Return the endpoint of that name; None when there is none."""
        return next((endpoint for endpoint in self.endpoints if endpoint.name == name), None)

    def retry_after_s(self) -> float:
        """Return when somebody may be asked again: the first of them."""
        now = monotonic()
        asked = [endpoint for endpoint in self.endpoints if not endpoint.draining]
        return min([endpoint.retry_after_s(now) for endpoint in asked], default=1.0)

    def begin(self, lease: Lease, outgoing: Outgoing, total_deadline: float) -> Exchange | None:
        """Send `outgoing` at once where that is plain: its body is there, and so is a connection.

        Whoever began must wait or watch, then ask whether it is `done`, else bring it to `call` or give it up.
        """
        if outgoing.upload is not None or not outgoing.replayable:
            return None
        endpoint = lease.endpoint
        connections = endpoint.connections
        connection = connections.try_acquire_safe() if outgoing.repeat == Repeat.NEVER else connections.try_acquire()
        if connection is None:
            return None
        exchange = Exchange(
            self._loop, self.patience.between_s, total_deadline, head_request=outgoing.method == b"HEAD"
        )
        exchange.expects = _expected(outgoing)
        head, body = outgoing.encode(endpoint)
        exchange.send(connection, head, body, self.patience.first_byte_s)
        return exchange

    def done(self, lease: Lease, exchange: Exchange, outgoing: Outgoing) -> bool:
        """Whether an exchange that was begun went well, with nothing to try again; the endpoint is credited then."""
        status = exchange.status
        if exchange.error is not None or not 200 <= status < 429:
            return False
        if status == 200:
            if outgoing.call is not None and self.verdicts.look(lease.endpoint, exchange, outgoing) is not None:
                return False
        else:
            if status in _TURNED_AWAY and len(self.endpoints) > 1:
                return False
            exchange.upstream = lease.endpoint.address
        self._budget.request()
        self._well(lease.endpoint, exchange, outgoing, status)
        return True

    async def call(
        self,
        lease: Lease,
        outgoing: Outgoing,
        *,
        total_deadline: float,
        gather: bool = False,
        limit: int = 1 << 62,
        begun: Exchange | None = None,
        key: AffinityKey | None = None,
    ) -> Exchange:
        """Send `outgoing` to the lease's endpoint, moving the lease when another one is tried.

        Returns an exchange whose head has come; raises UpstreamError when none did. Cancelling it closes the
        upstream connection at once; so must whoever gives up the exchange that was returned. `begun` is a first
        try that has been waited for. `key` ties the call to an endpoint, also when another one must be tried.
        """
        tried: list[Endpoint] = []
        retries = deaths = 0
        fresh = False
        refused: Exchange | None = None
        refuser: Endpoint | None = None
        self._budget.request()
        while True:
            endpoint = lease.endpoint
            if begun is not None:
                exchange, begun = begun, None
                error = self._outcome(exchange, outgoing)
            else:
                exchange = Exchange(
                    self._loop,
                    self.patience.between_s,
                    total_deadline,
                    head_request=outgoing.method == b"HEAD",
                    gather=gather,
                    limit=limit,
                )
                exchange.sent_at = monotonic()
                exchange.expects = _expected(outgoing)
                error = await self._once(endpoint, exchange, outgoing, fresh)
            other: Endpoint | None = None
            if error is None:
                fault = self.verdicts.look(endpoint, exchange, outgoing) if exchange.status == 200 else None
                status = exchange.status if fault is None else fault.status
                cause = self._judge(endpoint, exchange, outgoing, status)
                if refuser is not None and refused is not None:
                    # This is the second opinion about what `refuser` turned away.
                    if status >= 400:
                        # Everybody says so, or cannot tell. The first one's words are as good as any.
                        exchange.abort()
                        self._on_vain(endpoint.name, status)
                        lease.move(refuser)
                        return refused
                    self.repute.misfit(refuser, outgoing.errand(), monotonic())
                    self._on_vain(refuser.name, refused.status)
                elif cause and (cause != "refusal" or exchange.ended):
                    tried.append(endpoint)
                    budget = self._opinions if cause == "refusal" else self._budget
                    other = self._next(lease, outgoing, tried, retries, key, budget)
                if other is None:
                    if fault is not None and not fault.kept:
                        self.verdicts.tell(exchange, outgoing, fault)
                    if exchange.status != 200:
                        exchange.upstream = endpoint.address
                    return exchange
                if cause == "refusal":
                    refused, refuser = exchange, endpoint
                    exchange.upstream = endpoint.address
                else:
                    self._on_vain(endpoint.name, status)
                    exchange.abort()
            else:
                if error.kept and not fresh and self._raced(error, exchange, outgoing):
                    fresh = True
                    continue
                if error.failure is Failure.NO_DESCRIPTORS:
                    raise error
                self._blame(endpoint, error, exchange.sent_at)
                if refuser is not None and refused is not None:
                    self._on_vain(endpoint.name, 0)
                    lease.move(refuser)
                    return refused
                tried.append(endpoint)
                deaths += not error.unread
                error.deaths = deaths
                if error.unsent:
                    # It was not asked, so asking another is no second try: neither harm nor storm can come of it.
                    other = self.pick(lease.work, tried, key, outgoing) if "connect" in self._causes else None
                elif error.is_timeout:
                    raise error
                elif self._after_break(error, outgoing, deaths):
                    same = error.failure is Failure.RESET or error.failure is Failure.STALE
                    other = self._next(lease, outgoing, tried, retries, key, self._budget, same_allowed=same)
                if other is None:
                    raise error
                self._on_vain(endpoint.name, 0)
            if error is None or not error.unsent:
                retries += 1
                self._on_retry()
            fresh = False
            if other is not endpoint:
                lease.move(other)

    def broke(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """An answer that had begun broke off."""
        if exchange.error is not None:
            self._blame(endpoint, exchange.error, exchange.sent_at)
        else:
            self._failed(endpoint, exchange.sent_at)

    def over(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing | None, tap: Tap | None) -> bool:
        """An answer that had begun came to a clean end. Returns whether it was a failure all the same."""
        status, fault = exchange.status, None
        events = exchange.fields.is_event_stream and status == 200 and not exchange.fields.encoded
        if (
            events
            and tap is not None
            and outgoing is not None
            and outgoing.call is not None
            and outgoing.wire is not None
        ):
            fault = self.verdicts.ends_badly(endpoint, exchange, outgoing, tap)
        if fault is not None:
            status = fault.status
            if status >= 500 or status in OVERLOAD:
                now = monotonic()
                endpoint.spoiled(now, exchange.sent_at)
                self.repute.answered(endpoint, well=False, now=now, since=exchange.sent_at)
                return True
        if endpoint.failure_rate > 0.0 and status < 500 and status not in OVERLOAD:
            self._completed(endpoint)
        return fault is not None

    def abort(self) -> None:
        """Close every connection, and ask nobody any more: calls that break by it are not to be made again."""
        self._aborted = True
        for endpoint in self.endpoints:
            endpoint.connections.abort()

    def close(self) -> None:
        """Close idle connections now and the others after their exchange."""
        for endpoint in self.endpoints:
            endpoint.connections.close()

    def stats(self) -> list[dict[str, Any]]:
        """Return every endpoint's state, JSON-ready."""
        now = monotonic()
        return [endpoint.stats(now) for endpoint in self.endpoints]

    async def _once(
        self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing, fresh: bool
    ) -> UpstreamError | None:
        """Send once. Returns the error, or None when the head of an answer has come."""
        connections = endpoint.connections
        # Whatever cannot be sent twice goes over a connection that can hardly be about to close.
        once = outgoing.repeat == Repeat.NEVER
        connection = None
        if not fresh:
            connection = connections.try_acquire_safe() if once else connections.try_acquire()
        try:
            if connection is None:
                connect_s = min(self.patience.connect_s, exchange.total_deadline - monotonic())
                connection = await connections.acquire(connect_s, fresh=fresh or once)
                if connection.uses == 0 and endpoint.standing.unreachable and endpoint.accepted():
                    self.on_trouble()
            head, body = outgoing.encode(endpoint)
            if outgoing.upload is None:
                exchange.send(connection, head, body, self.patience.first_byte_s)
                await exchange.wait()
            else:
                await self._send_upload(connection, exchange, outgoing, head)
        except UpstreamError as error:
            return error
        except BaseException:
            exchange.abort()
            raise
        return self._outcome(exchange, outgoing)

    def _outcome(self, exchange: Exchange, outgoing: Outgoing) -> UpstreamError | None:
        if exchange.upgrade_rest is not None and not outgoing.upgrade:
            exchange.abort()
            return UpstreamError(Failure.PROTOCOL, "switched protocols without being asked to")
        return exchange.error

    async def _send_upload(self, connection: Connection, exchange: Exchange, outgoing: Outgoing, head: bytes) -> None:
        """Send a body piece by piece, as fast as the upstream takes it, until it answers."""
        connection.uploading = True
        exchange.send(connection, head, b"", self.patience.first_byte_s)
        if outgoing.expects_continue:
            await exchange.wait_continue(_CONTINUE_S)
        if exchange.started or exchange.ended:
            await exchange.wait()
            return
        pump = self._loop.create_task(_pump(connection, exchange, outgoing))
        try:
            await exchange.wait()
            if exchange.fault is not None:
                raise exchange.fault
        finally:
            if not pump.done():
                if exchange.streaming:
                    exchange.companion = pump
                else:
                    pump.cancel()

    def _next(
        self,
        lease: Lease,
        outgoing: Outgoing,
        tried: list[Endpoint],
        retries: int,
        key: AffinityKey | None,
        budget: RetryBudget,
        *,
        same_allowed: bool = False,
    ) -> Endpoint | None:
        """Return whom to try next, None when there is to be no next try."""
        if retries >= self._max_retries:
            return None
        other = self.pick(lease.work, tried, key, outgoing)
        if other is None and same_allowed and len(self.endpoints) == len(tried) == 1:
            other = self.pick(lease.work)
        if other is None or not budget.take(monotonic()):
            return None
        return other

    def _judge(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing, status: int) -> str:
        """Book an answer that amounts to `status`. Returns why it may be tried elsewhere, if it may."""
        causes = self._causes
        if status in OVERLOAD:
            self._busy(endpoint, exchange)
            return "overload" if "overload" in causes and outgoing.replayable else ""
        if status < 500:
            self._well(endpoint, exchange, outgoing, status)
            turned_away = status in _TURNED_AWAY and len(self.endpoints) > 1
            return "refusal" if turned_away and "refusal" in causes and outgoing.replayable else ""
        broken = status in _BROKEN_GATEWAY and exchange.told is None
        if broken:
            self._failed(endpoint, exchange.sent_at)
        else:
            endpoint.errored()
            self.repute.answered(endpoint, well=False, now=monotonic(), since=exchange.sent_at)
        repeat = outgoing.repeat
        if "failure" not in causes or not outgoing.replayable or repeat == Repeat.NEVER:
            return ""
        return "failure" if not broken or repeat == Repeat.FREELY or "broken" in causes else ""

    def _well(self, endpoint: Endpoint, exchange: Exchange, outgoing: Outgoing, status: int) -> None:
        """An upstream answered, and not that it failed. How an answer ends that is still coming, `over` is told."""
        endpoint.succeeded(exchange.sent_at)
        if endpoint.failure_rate > 0.0 and (exchange.ended or exchange.upgrade_rest is not None):
            self._completed(endpoint)
        if len(self.endpoints) == 1:
            return
        repute = self.repute
        if status < 400 and repute.knows_misfits:
            repute.served(endpoint, outgoing.errand())

    def _completed(self, endpoint: Endpoint) -> None:
        """An upstream that has failed lately brought an answer to its good end."""
        endpoint.completed()
        self.repute.answered(endpoint, well=True, now=monotonic())

    def _raced(self, error: UpstreamError, exchange: Exchange, outgoing: Outgoing) -> bool:
        """Whether a request on a kept connection that broke is to be sent once more, over a fresh one.

        A server that was about to close it does so within a round trip; one that read the request takes longer to
        die of it.
        """
        if not outgoing.replayable:
            return False
        if error.unread or outgoing.repeat == Repeat.FREELY:
            return True
        return outgoing.repeat == Repeat.ANSWERED and monotonic() - exchange.sent_at < _RACE_S

    def _after_break(self, error: UpstreamError, outgoing: Outgoing, deaths: int) -> bool:
        """Whether a request may be sent again of which nothing came back."""
        if error.unread:
            held = outgoing.upload is None or error.unsent
            return held and "connect" in self._causes
        if deaths >= MOST_DEATHS or not outgoing.replayable or outgoing.repeat == Repeat.NEVER:
            return False
        if error.failure is Failure.PROTOCOL:
            return "failure" in self._causes
        return "failure" in self._causes if outgoing.repeat == Repeat.FREELY else "broken" in self._causes

    def _busy(self, endpoint: Endpoint, exchange: Exchange) -> None:
        """Leave an endpoint alone that said `not now`, for as long as it asked."""
        wanted = retry_after_s(exchange.fields.retry_after, time(), exchange.date)
        endpoint.overloaded(monotonic(), wanted, exchange.sent_at)

    def _blame(self, endpoint: Endpoint, error: UpstreamError, since: float) -> None:
        """Hold a call that was sent at `since` and broke against its endpoint, unless it was not to blame."""
        failure = error.failure
        if failure is Failure.CONNECT:
            endpoint.connections.drop_idle()
            if endpoint.refused(monotonic()):
                self.on_trouble()
        elif failure is not Failure.CONNECTIONS_BUSY:
            if failure is Failure.RESET:
                endpoint.connections.drop_idle()
            self._failed(endpoint, since, timeout=error.is_timeout)

    def _failed(self, endpoint: Endpoint, since: float, *, timeout: bool = False) -> None:
        now = monotonic()
        self.repute.answered(endpoint, well=False, now=now, since=since)
        if endpoint.failed(now, since, timeout=timeout):
            self.on_trouble()


async def _pump(connection: Connection, exchange: Exchange, outgoing: Outgoing) -> None:
    """Move the body from the client to the upstream."""
    upload = outgoing.upload
    assert upload is not None
    chunked = outgoing.length is None
    try:
        async for piece in upload.pieces():
            if exchange.ended:
                return
            connection.set_deadline(exchange.upload_deadline())
            more = connection.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            while not more and not exchange.ended:
                # A client whose body is not being read cannot be heard leaving.
                more = await connection.drain(_LOOK_EVERY_S)
                if not more and upload.gone():
                    raise ConnectionResetError("the client left during its upload")
        if not exchange.ended:
            if chunked:
                connection.write(b"0\r\n%b\r\n" % lines_of(upload.trailers))
            connection.uploading = False
    except Exception as error:
        # The client's side broke: the upstream must not take half a body for a whole one.
        exchange.abort_with(error)


def _expected(outgoing: Outgoing) -> int:
    call = outgoing.call
    return EXPECTS_ANYTHING if call is None else EXPECTS_STREAM if call.stream else EXPECTS_WHOLE
