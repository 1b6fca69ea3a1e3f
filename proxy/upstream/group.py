"""A pool's upstreams together: whom to ask, how long to wait, and whether to ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic, time
from typing import Any, Final

from proxy.headers import lines_of
from proxy.lease import Lease
from proxy.upstream.connection import Connection
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange, Patience
from proxy.upstream.outgoing import Outgoing
from proxy.upstream.retry import RetryBudget
from proxy.upstream.retry_after import retry_after_s
from proxy.upstream.routing import AffinityKey, Router

__all__ = ["OVERLOAD", "Group"]

OVERLOAD = frozenset({429, 503})
"""Answers that mean: not now."""
_BROKEN_GATEWAY = frozenset({502, 504})
_CONTINUE_S: Final = 1.0
"""How long to wait for an upstream's 100 before the body is sent anyway (RFC 9110 section 10.1.1)."""

_LOOK_EVERY_S: Final = 0.05
_SURELY_ALIVE_S: Final = 1.0
"""Servers close connections that idled for seconds; one that was just in use is safe for what cannot be repeated."""


class Group:
    """Sends calls to endpoints and learns from what comes back.

    A call is tried again only while nothing of its answer has been passed on, which is always so in here, and only
    where that does no harm. A kept connection that the other side had just closed is not held against anybody and
    costs no budget; everything else does.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        router: Router,
        patience: Patience,
        budget: RetryBudget,
        *,
        max_retries: int = 1,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        self.endpoints = tuple(endpoints)
        self.patience = patience
        self._router = router
        self._budget = budget
        self._aborted = False
        self._max_retries = max_retries
        self._on_retry = on_retry
        self._loop = asyncio.get_running_loop()
        self.on_trouble: Callable[[], None] = lambda: None
        """Called when an endpoint accepts no connection, does again, or is ejected."""

    def pick(
        self, work: float = 0.0, exclude: Sequence[Endpoint] = (), key: AffinityKey | None = None
    ) -> Endpoint | None:
        """Return whom to ask for a call of `work` tokens, None when nobody may be asked."""
        if self._aborted:
            return None
        return self._router.pick(self.endpoints, monotonic(), work=work, exclude=exclude, key=key)

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
        connection = endpoint.connections.try_acquire()
        if connection is None:
            return None
        exchange = Exchange(
            self._loop, self.patience.between_s, total_deadline, head_request=outgoing.method == b"HEAD"
        )
        head, body = outgoing.encode(endpoint)
        exchange.send(connection, head, body, self.patience.first_byte_s)
        return exchange

    def done(self, lease: Lease, exchange: Exchange) -> bool:
        """Whether an exchange that was begun went well, with nothing to try again; the endpoint is credited then."""
        if exchange.error is not None or not 200 <= exchange.status < 429:
            return False
        self._budget.request()
        lease.endpoint.succeeded(exchange.sent_at)
        if exchange.status != 200:
            exchange.upstream = lease.endpoint.address
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
        retries = 0
        fresh = False
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
                error = await self._once(endpoint, exchange, outgoing, fresh)
            if error is None:
                if exchange.status not in OVERLOAD:
                    self._judge(endpoint, exchange)
                    if exchange.status != 200:
                        exchange.upstream = endpoint.address
                    return exchange
                self._busy(endpoint, exchange)
                tried.append(endpoint)
                other = self._next(lease, outgoing, tried, retries, key, same_allowed=False)
                if other is None:
                    return exchange
                exchange.abort()
            else:
                if error.failure is Failure.STALE and not fresh and outgoing.replayable:
                    fresh = True
                    continue
                if error.failure is Failure.NO_DESCRIPTORS:
                    raise error
                self._blame(endpoint, error, exchange.sent_at)
                tried.append(endpoint)
                if error.unsent:
                    # It was not asked, so asking another is no second try: neither harm nor storm can come of it.
                    other = self.pick(lease.work, tried, key)
                elif error.is_timeout:
                    raise error
                else:
                    same = error.failure is Failure.RESET
                    other = self._next(lease, outgoing, tried, retries, key, same_allowed=same)
                if other is None:
                    raise error
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
            endpoint.failed(monotonic(), exchange.sent_at)

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
        max_idle_s = inf if outgoing.replayable else _SURELY_ALIVE_S
        connection = None if fresh else connections.try_acquire(max_idle_s)
        try:
            if connection is None:
                connect_s = min(self.patience.connect_s, exchange.total_deadline - monotonic())
                connection = await connections.acquire(connect_s, fresh=fresh or not outgoing.replayable)
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
        *,
        same_allowed: bool,
    ) -> Endpoint | None:
        """Return whom to try next, None when there is to be no next try."""
        if retries >= self._max_retries or not outgoing.replayable:
            return None
        other = self.pick(lease.work, tried, key)
        if other is None and same_allowed and len(self.endpoints) == len(tried) == 1:
            other = self.pick(lease.work)
        if other is None or not self._budget.take(monotonic()):
            return None
        return other

    def _judge(self, endpoint: Endpoint, exchange: Exchange) -> None:
        status = exchange.status
        if status < 500:
            endpoint.succeeded(exchange.sent_at)
        elif status in _BROKEN_GATEWAY:
            self._failed(endpoint, exchange.sent_at)
        else:
            endpoint.errored()

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
        if endpoint.failed(monotonic(), since, timeout=timeout):
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
