"""Reading what upstreams say about their own load, from the metrics that their profile names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from random import random
from time import monotonic

from proxy.config.profile import Profile
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.errors import UpstreamError
from proxy.upstream.exchange import Exchange
from proxy.upstream.reported import Reported

__all__ = ["MAX_METRICS_BYTES", "SignalPoller", "Watched"]

MAX_METRICS_BYTES = 4 << 20
"""Metrics longer than this are not read."""
_SPREAD = 0.2
"""Share of the interval by which readings are shifted at random, so that proxies do not ask in step."""

log = logging.getLogger("trimtab.proxy")


class Watched:
    """One endpoint whose metrics are read, over a connection of its own that no request ever waits for."""

    def __init__(self, endpoint: Endpoint, profile: Profile, interval_s: float) -> None:
        spec = profile.metrics
        if spec is None:
            raise ValueError(f"profile {profile.name} names no metrics")
        self.endpoint = endpoint
        self.profile = profile
        self.reported = endpoint.reported = Reported(interval_s)
        address = endpoint.address
        prefix = address.root
        if spec.port is not None and spec.port != address.port:
            name = f"[{address.host}]" if ":" in address.host else address.host
            address, prefix = replace(address, port=spec.port, authority=f"{name}:{spec.port}".encode("idna")), b""
        self.connections = ConnectionPool(asyncio.get_running_loop(), address, limit=1, idle_s=2.0)
        self.head = (
            b"GET %b%b HTTP/1.1\r\nHost: %b\r\nUser-Agent: trimtab-signals\r\nAccept: text/plain\r\n%b\r\n"
            % (
                prefix,
                spec.path.encode(),
                address.authority,
                endpoint.credential or b"",
            )
        )

    async def read(self, timeout_s: float) -> None:
        """Read once. Whatever goes wrong is kept as the reason why there is nothing new, and held against nobody."""
        now = monotonic()
        exchange = Exchange(
            asyncio.get_running_loop(),
            between_s=timeout_s,
            total_deadline=now + timeout_s,
            gather=True,
            limit=MAX_METRICS_BYTES,
        )
        error = ""
        try:
            exchange.send(await self.connections.acquire(timeout_s), self.head, b"", timeout_s)
            await exchange.wait()
            if exchange.error is not None:
                error = str(exchange.error)
            elif exchange.status != 200:
                error = f"status {exchange.status}"
        except UpstreamError as failure:
            error = str(failure)
        finally:
            exchange.abort()
        if not error:
            self.reported.read(self.profile.read_signals(exchange.take().decode("utf-8", "replace")), monotonic())
            return
        if not self.reported.error:
            log.info("upstream %s: its metrics cannot be read: %s", self.endpoint.name, error)
        self.reported.failed(error)


class SignalPoller:
    """Reads everybody's metrics once per interval until it is stopped. Create it inside a running event loop."""

    def __init__(self, watched: Sequence[Watched], *, interval_s: float, timeout_s: float) -> None:
        self._watched = tuple(watched)
        self._interval_s = interval_s
        self._timeout_s = min(timeout_s, interval_s)
        self._task = asyncio.get_running_loop().create_task(self._run()) if self._watched else None

    async def round(self) -> None:
        """Read everybody's once, at the same time."""
        await asyncio.gather(*[watched.read(self._timeout_s) for watched in self._watched])

    def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
        for watched in self._watched:
            watched.connections.abort()

    async def _run(self) -> None:
        while True:
            await self.round()
            await asyncio.sleep(self._interval_s * (1.0 + _SPREAD * (random() - 0.5)))
