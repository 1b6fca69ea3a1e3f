"""Asking upstreams how they are, whether or not anybody else is asking them anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import random
from time import monotonic

from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import UpstreamError
from proxy.upstream.exchange import Exchange

__all__ = ["Prober", "probe"]

_SPREAD = 0.1
"""Share of the interval by which rounds are shifted at random, so that proxies do not ask in step."""
_MAX_ANSWER_BYTES = 1 << 20
_UNPROVEN_S = 0.25
"""An upstream that was never seen well is probably starting: look more often, so that readiness comes at once."""


async def probe(endpoint: Endpoint, timeout_s: float) -> bool:
    """Ask one endpoint. Returns whether it answered with 200 to 399 within `timeout_s`.

    An endpoint without a health path is well when it accepts a connection.
    """
    path = endpoint.health_path
    until = monotonic() + timeout_s
    exchange = Exchange(
        asyncio.get_running_loop(), between_s=timeout_s, total_deadline=until, gather=True, limit=_MAX_ANSWER_BYTES
    )
    head = b"GET %b%b%bUser-Agent: trimtab-health\r\nAccept: */*\r\n%b\r\n" % (
        endpoint.address.prefix,
        (path or "").encode(),
        endpoint.host_line,
        endpoint.credential or b"",
    )
    try:
        connection = await endpoint.connections.acquire(timeout_s)
        if path is None:
            connection.leave()
            return True
        exchange.send(connection, head, b"", timeout_s)
        await exchange.wait()
    except UpstreamError:
        return False
    finally:
        exchange.abort()
    return exchange.started and 200 <= exchange.status < 400


class Prober:
    """Probes every endpoint once per interval until it is stopped. Create it inside a running event loop."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        interval_s: float,
        timeout_s: float,
        on_change: Callable[[Endpoint], None],
    ) -> None:
        self._endpoints = tuple(endpoints)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._tasks = [asyncio.get_running_loop().create_task(self._run())]

    def stop(self) -> None:
        """Ask no more."""
        for task in self._tasks:
            task.cancel()

    def hurry(self) -> None:
        """Look at once, and often, at whoever was never seen well, until everybody was."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._until_proven()))

    async def round(self) -> None:
        """Probe everybody once, at the same time."""
        for endpoint, ok in await self._ask(self._endpoints):
            self._take(endpoint, ok)

    async def _ask(self, endpoints: Sequence[Endpoint]) -> list[tuple[Endpoint, bool]]:
        answers = await asyncio.gather(*[probe(endpoint, self._timeout_s) for endpoint in endpoints])
        return list(zip(endpoints, answers, strict=True))

    def _take(self, endpoint: Endpoint, ok: bool) -> None:
        if endpoint.probed(ok, proven=endpoint.health_path is not None):
            self._on_change(endpoint)

    async def _until_proven(self) -> None:
        while unproven := [endpoint for endpoint in self._endpoints if not endpoint.proven]:
            for endpoint, ok in await self._ask(unproven):
                # Only good news: what is not there yet has not failed, and the rounds count what does.
                if ok:
                    self._take(endpoint, ok)
            await asyncio.sleep(min(self._interval_s, _UNPROVEN_S))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s * (1.0 + _SPREAD * (random() - 0.5)))
            await self.round()
