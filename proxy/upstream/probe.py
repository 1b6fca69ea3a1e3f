"""Asking upstreams how they are, whether or not anybody else is asking them anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random
from time import monotonic

from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import Failure, UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.health import Health

__all__ = ["Prober", "probe"]

_SPREAD = 0.1
"""Share of the interval by which rounds are shifted at random, so that proxies do not ask in step."""
_MAX_ANSWER_BYTES = 1 << 20
_SOON_S = 0.25
"""One that was never seen well is probably starting, and while nobody is there requests wait: look more often."""
_AGAIN_S = 0.5
"""Between two looks at one that is away while others are there."""


async def probe(endpoint: Endpoint, timeout_s: float) -> Health:
    """Ask one endpoint: it is well when it answers with 200 to 399 within `timeout_s`.

    An endpoint without a health path is well when it accepts a connection.
    """
    path = endpoint.health_path
    until = monotonic() + timeout_s
    exchange = Exchange(
        asyncio.get_running_loop(), between_s=timeout_s, total_deadline=until, gather=True, limit=_MAX_ANSWER_BYTES
    )
    head = b"GET %b%b%bUser-Agent: trimtab-health\r\nAccept: */*\r\n%b\r\n" % (
        endpoint.health_prefix,
        (path or "").encode(),
        endpoint.host_line,
        endpoint.credential or b"",
    )
    try:
        # Away, its kept connections say nothing: what counts is whether it accepts one.
        fresh = not endpoint.standing.reachable
        connection = await endpoint.connections.acquire(timeout_s, fresh=fresh)
        if path is None:
            connection.leave()
            return Health.WELL
        exchange.send(connection, head, b"", timeout_s)
        await exchange.wait()
    except UpstreamError as error:
        return Health.GONE if error.failure is Failure.CONNECT else Health.ILL
    finally:
        exchange.abort()
    return Health.WELL if exchange.started and 200 <= exchange.status < 400 else Health.ILL


class Prober:
    """Probes every endpoint once per interval until it is stopped, and those that are away more often.

    `urgent` says whether nobody is there, so that requests may be waiting. Create it inside a running event loop.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        interval_s: float,
        timeout_s: float,
        on_change: Callable[[Endpoint], None],
        urgent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._urgent = urgent
        self._rounds = asyncio.get_running_loop().create_task(self._run())
        self._search: asyncio.Task[None] | None = None
        self._stopped = False

    def stop(self) -> None:
        """Ask no more."""
        self._stopped = True
        self._rounds.cancel()
        if self._search is not None:
            self._search.cancel()

    def hurry(self) -> None:
        """Look at once, and often, at whoever is away or was never seen well, until everybody is there."""
        if not self._stopped and (self._search is None or self._search.done()):
            self._search = asyncio.get_running_loop().create_task(self._until_all_are_there())

    async def round(self) -> None:
        """Probe everybody once, at the same time."""
        for endpoint, ok in await self._ask(self._endpoints):
            self._take(endpoint, ok)

    async def _ask(self, endpoints: Sequence[Endpoint]) -> list[tuple[Endpoint, Health]]:
        answers = await asyncio.gather(*[probe(endpoint, self._timeout_s) for endpoint in endpoints])
        return list(zip(endpoints, answers, strict=True))

    def _take(self, endpoint: Endpoint, health: Health) -> None:
        if endpoint.probed(health, monotonic(), proves=endpoint.health_path is not None):
            self._on_change(endpoint)
        if not endpoint.standing.reachable:
            self.hurry()

    async def _until_all_are_there(self) -> None:
        while missing := [each for each in self._endpoints if not each.proven or _is_away(each)]:
            await asyncio.gather(*[self._look_at(endpoint) for endpoint in missing])
            soon = self._urgent() or any(not endpoint.proven for endpoint in missing)
            await asyncio.sleep(min(self._interval_s, (_SOON_S if soon else _AGAIN_S) * (1.0 - _SPREAD * random())))

    async def _look_at(self, endpoint: Endpoint) -> None:
        health = await probe(endpoint, self._timeout_s)
        standing = endpoint.standing
        # Only good news: what is not there yet has not failed, and the rounds count what does. One that accepts
        # connections again and does not say that it is well is news too.
        if health is Health.WELL or (health is Health.ILL and standing.unreachable):
            self._take(endpoint, health)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (1.0 + _SPREAD * (random() - 0.5)))
            await self.round()


def _is_away(endpoint: Endpoint) -> bool:
    """Whether a check could bring it back: an open port says nothing for one that breaks off its answers."""
    standing = endpoint.standing
    return not standing.reachable or (standing.ejected and endpoint.health_path is not None)
