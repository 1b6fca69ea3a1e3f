"""Health checks: asks a pool's upstreams in turn whether they are well, and tells their endpoints."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from proxy.config.model import HealthConfig
from proxy.profile import load_profile
from proxy.upstream.endpoint import Endpoint

__all__ = ["Prober", "probe"]

_LOG = logging.getLogger("trimtab.proxy")

_UNPROVEN_S = 0.25
"""An upstream that was never seen well is probably starting: look more often, so that readiness comes at once."""


class Prober:
    """One task per upstream. Create it inside a running event loop; `stop` ends it.

    An upstream that has not been well yet is not taken out: requests find out by themselves, and a check that is
    wrong about it must not keep everybody away from a server that works.
    """

    def __init__(self, pool: str, endpoints: Sequence[Endpoint], config: HealthConfig) -> None:
        self._pool = pool
        self._config = config
        self._tasks = [asyncio.get_running_loop().create_task(self._watch(endpoint)) for endpoint in endpoints]

    def stop(self) -> None:
        """Ask nobody any more."""
        for task in self._tasks:
            task.cancel()

    async def _watch(self, endpoint: Endpoint) -> None:
        config = self._config
        path = config.path or load_profile(endpoint.profile).health.path
        interval_s, timeout_s = config.interval_ms / 1000.0, config.timeout_ms / 1000.0
        while True:
            well = await probe(endpoint, path, timeout_s)
            if (well or endpoint.proven) and endpoint.probed(well):
                _LOG.warning(
                    "pool %s: %s is %s by its health check", self._pool, endpoint.name, "up" if well else "down"
                )
            await asyncio.sleep(interval_s if endpoint.proven else min(interval_s, _UNPROVEN_S))


async def probe(endpoint: Endpoint, path: str | None, timeout_s: float) -> bool:
    """Return whether the upstream answers GET `path` with 2xx, or without a path takes a connection at all."""
    address = endpoint.address
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=address.tls)
            if path is None:
                return True
            key = b"" if endpoint.api_key is None else b"Authorization: Bearer %b\r\n" % endpoint.api_key
            writer.write(
                b"GET %b%b HTTP/1.1\r\nHost: %b\r\n%bConnection: close\r\n\r\n"
                % (address.prefix, path.encode(), address.authority, key)
            )
            status = (await reader.readline()).split(b" ", 2)
            return len(status) > 1 and status[0].startswith(b"HTTP/1.") and status[1][:1] == b"2"
    except (OSError, TimeoutError, ValueError):
        # Refused, unreachable, silent, or no HTTP: all of them mean that it is not well.
        return False
    finally:
        if writer is not None:
            writer.transport.abort()
