"""The connections kept to one upstream."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import select
import ssl
from collections import deque
from math import inf
from random import random
from typing import Final

from proxy.now import monotonic
from proxy.upstream.address import Address
from proxy.upstream.connection import Connection
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.resolve import Resolve, is_address, lookup, spread

__all__ = ["ConnectionPool"]

log = logging.getLogger("trimtab.proxy")

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_ANYTHING: Final = select.POLLIN | select.POLLPRI | getattr(select, "POLLRDHUP", 0)
"""A connection at rest on which any of this is to be read has ended, or is about to."""
_SURELY_ALIVE_S: Final = 1.0
"""Servers close connections that idled for seconds; one that was just in use is safe for what cannot be repeated."""
_AFTER_ERROR_S: Final = 0.1
"""Servers may close a connection right behind an error, without having said so: by then it has been seen."""
_AGE_SPREAD: Final = 0.2
"""Share of the greatest age by which connections are retired earlier, at random."""


class ConnectionPool:
    """Keeps idle connections, newest first, and never opens more than `limit` at once.

    The one that idled least is reused first, so that the pool shrinks to what is needed; one timer closes what
    idled longer than `idle_s`, which should stay below the upstream's own limit. One that is older than `max_age_s`
    is closed instead of being kept, and names are looked up for every new one: so a name that moves is followed.
    """

    __slots__ = (
        "_address",
        "_all",
        "_closed",
        "_idle",
        "_idle_s",
        "_limit",
        "_loop",
        "_max_age_s",
        "_named",
        "_opening",
        "_timer",
        "_waiters",
        "_wary",
        "resolve",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        address: Address,
        *,
        limit: int,
        idle_s: float,
        max_age_s: float = inf,
        resolve: Resolve = lookup,
    ) -> None:
        self._loop = loop
        self._address = address
        self._limit = limit
        self._idle_s = idle_s
        self._max_age_s = max_age_s
        self._named = not is_address(address.host)
        self.resolve = resolve
        """Looks the host's name up."""
        self._idle: deque[Connection] = deque()
        self._all: set[Connection] = set()
        self._opening = 0
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._wary = False
        """Whether the server has ever said what nobody asked for: then each connection is looked at before it is
        used, for what has come and waits to be read."""

    @property
    def open(self) -> int:
        """Connections that are open or being opened."""
        return len(self._all) + self._opening

    @property
    def idle(self) -> int:
        """Connections at rest."""
        return len(self._idle)

    def try_acquire(self) -> Connection | None:
        """Return the connection in use last, if it looks alive, or None."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable and (not self._wary or _silent(connection)):
                return connection
        return None

    def try_acquire_safe(self) -> Connection | None:
        """Return a connection for what cannot be sent twice: one that can hardly be about to close; or None.

        It was in use just now, what it brought was no error, or that was a while ago, and the system knows of no end.
        """
        idle, now = self._idle, monotonic()
        for at in range(len(idle) - 1, -1, -1):
            connection = idle[at]
            rested = now - connection.idle_since
            if rested > _SURELY_ALIVE_S:
                return None
            if (connection.erred and rested < _AFTER_ERROR_S) or not connection.usable:
                continue
            if _silent(connection):
                del idle[at]
                return connection
        return None

    async def acquire(self, connect_s: float, *, fresh: bool = False) -> Connection:
        """Return a connection, a new one if `fresh`, or one that becomes free where there are no more to be opened.

        Raises UpstreamError when none comes within `connect_s`.
        """
        if not fresh:
            connection = self.try_acquire()
            if connection is not None:
                return connection
        until = monotonic() + connect_s
        while self.open >= self._limit:
            if fresh and self._idle:
                self._idle.popleft().transport.abort()
                break
            handed = await self._wait_turn(until)
            if handed is not None and handed.usable:
                if not (fresh and handed.erred):
                    return handed
                handed.transport.abort()
                break
        return await self._open(until)

    def drop_idle(self) -> None:
        """Close idle connections now: the upstream broke off another, and these are of the same age."""
        while self._idle:
            self._idle.pop().transport.abort()

    def close(self) -> None:
        """Close idle connections now and the others after their exchange."""
        self._closed = True
        while self._idle:
            self._idle.pop().transport.close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Close every connection now."""
        self.close()
        for connection in tuple(self._all):
            connection.transport.abort()

    async def _open(self, until: float) -> Connection:
        address = self._address
        self._opening += 1
        try:
            connection = await self._connect(until)
        except TimeoutError:
            self._hand_on(None)
            raise UpstreamError(Failure.CONNECT_TIMEOUT, f"no connection to {address.url} in time") from None
        except OSError as error:
            self._hand_on(None)
            failure = Failure.NO_DESCRIPTORS if error.errno in _NO_DESCRIPTORS else Failure.CONNECT
            if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
                failure = Failure.TLS
            raise UpstreamError(failure, f"cannot connect to {address.url}: {error}") from None
        except asyncio.CancelledError:
            self._hand_on(None)
            raise
        finally:
            self._opening -= 1
        self._all.add(connection)
        # Not all on the same beat, lest they all be opened again together.
        connection.retire_at = monotonic() + self._max_age_s * (1.0 - _AGE_SPREAD * random())
        return connection

    async def _connect(self, until: float) -> Connection:
        """Open a connection to one of the host's addresses; each gets its share of the time that is left."""
        host = self._address.host
        hosts = [host]
        if self._named:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                hosts = spread(await self.resolve(host, self._address.port)) or [host]
        for left in range(len(hosts) - 1, 0, -1):
            patience = max(0.0, until - monotonic()) / (left + 1)
            with contextlib.suppress(OSError):  # TimeoutError is one
                return await self._connect_to(hosts[-left - 1], patience)
        return await self._connect_to(hosts[-1], max(0.0, until - monotonic()))

    async def _connect_to(self, host: str, patience: float) -> Connection:
        address = self._address
        async with asyncio.timeout(patience):
            _, connection = await self._loop.create_connection(
                lambda: Connection(self._loop, self._free, self._lost),  # type: ignore[type-var]
                host,
                address.port,
                ssl=address.tls,
                server_hostname=address.tls_name,
            )
        return connection

    async def _wait_turn(self, until: float) -> Connection | None:
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(max(0.0, until - monotonic())):
                return await waiter
        except TimeoutError:
            raise UpstreamError(
                Failure.CONNECTIONS_BUSY, f"all {self._limit} connections to {self._address.url} are busy"
            ) from None
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # Woken and cancelled in the same turn of the loop: the turn is the next one's.
                handed = waiter.result()
                if handed is not None and handed.usable:
                    self._free(handed)
                else:
                    self._hand_on(None)
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _free(self, connection: Connection) -> None:
        now = connection.idle_since = monotonic()
        if self._closed or now >= connection.retire_at:
            connection.transport.close()
            return
        if self._waiters and self._hand_on(connection):
            return
        self._idle.append(connection)
        if self._timer is None:
            self._timer = self._loop.call_later(self._idle_s, self._evict)

    def _lost(self, connection: Connection) -> None:
        if connection.unasked and not self._wary:
            self._wary = True
            log.warning("upstream %s says more than it was asked; such connections are closed", self._address.url)
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._waiters:
            self._hand_on(None)

    def _hand_on(self, connection: Connection | None) -> bool:
        """Wake the next waiter, with `connection` or to open one itself."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _evict(self) -> None:
        self._timer = None
        idle = self._idle
        oldest_allowed = monotonic() - self._idle_s
        while idle and idle[0].idle_since <= oldest_allowed + 0.001:
            idle.popleft().transport.close()
        if idle:
            self._timer = self._loop.call_later(
                max(0.0, idle[0].idle_since + self._idle_s - monotonic()) + 0.001, self._evict
            )


def _silent(connection: Connection) -> bool:
    """Whether nothing came on a connection at rest, not even its end, that the loop has not read yet."""
    sock = connection.transport.get_extra_info("socket")
    if sock is None:
        return True
    poll = select.poll()
    poll.register(sock.fileno(), _ANYTHING)
    return not poll.poll(0)
