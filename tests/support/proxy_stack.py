"""A whole data plane in the test's own event loop, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from controller.loop import PoolController
from controller.observation import Observation
from proxy.access.keys import Keyring
from proxy.clock import LoopClock
from proxy.config.certificates import server_context
from proxy.config.model import Config
from proxy.dispatch.pool import Pool
from proxy.http.cors import Cors
from proxy.http.incoming import Limits
from proxy.http.server import DataServer, ServerLimits
from proxy.observe.access_log import AccessLog
from proxy.serving.handler import Handler
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable

__all__ = ["Counts", "Stack"]


class Counts:
    """Hooks that remember everything."""

    def __init__(self) -> None:
        self.finished: list[tuple[Observation, str, int]] = []
        self.sheds: list[tuple[str, str]] = []
        self.batches: list[tuple[int, str]] = []
        self.windows: list[float] = []
        self.retries = 0
        self.vain: list[tuple[str, int]] = []
        self.fallbacks: list[tuple[str, str, str]] = []
        self.follow_ups: list[str] = []

    def request_finished(self, obs: Observation, route: str, code: int) -> None:
        self.finished.append((obs, route, code))

    def shed(self, pool: str, reason: str) -> None:
        self.sheds.append((pool, reason))

    def batch_dispatched(self, pool: str, size: int, closed_by: str) -> None:
        self.batches.append((size, str(closed_by)))

    def window_waited(self, pool: str, seconds: float) -> None:
        self.windows.append(seconds)

    def retried(self, pool: str) -> None:
        self.retries += 1

    def asked_in_vain(self, pool: str, upstream: str, status: int) -> None:
        self.vain.append((upstream, status))

    def fell_back(self, pool: str, to: str, cause: str) -> None:
        self.fallbacks.append((pool, to, cause))

    def followed_up(self, pool: str, result: str) -> None:
        self.follow_ups.append(result)


class Stack:
    """`async with Stack(upstream.url) as stack:` gives a proxy on `stack.port`.

    Keyword arguments are the configuration's own keys, and `profile` for all of `upstreams`; a test that names none
    gets no batching window.
    """

    def __init__(
        self,
        *upstreams: str,
        controllers: Sequence[PoolController] = (),
        server_limits: ServerLimits | None = None,
        limits: Limits | None = None,
        **config: Any,
    ) -> None:
        profile = config.pop("profile", None)
        if upstreams:
            config["upstreams"] = [{"url": url, "profile": profile} if profile else url for url in upstreams]
        if "pools" not in config:
            config.setdefault("setpoints", {"window_ms": 0, "max_batch_size": 64})
        self.config = Config.model_validate(config)
        self.counts = Counts()
        self.lifecycle = Lifecycle()
        self.pools: list[Pool] = []
        self._controllers = list(controllers)
        self._server_limits = server_limits
        self._limits = limits

    @property
    def pool(self) -> Pool:
        return self.pools[0]

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Stack:
        clock = LoopClock(asyncio.get_running_loop())
        for index, config in enumerate(self.config.pools):
            controller = self._controllers[index] if index < len(self._controllers) else None
            self.pools.append(Pool(config, clock=clock, hooks=self.counts, controller=controller))
        self.handler = Handler(
            RouteTable(self.pools),
            limits=self._limits or Limits(),
            lifecycle=self.lifecycle,
            trust_headers=self.config.trust_headers,
        )
        self.handler.service.hooks = self.counts
        self.handler.service.access_log = AccessLog.of(self.config.log)
        self.handler.service.cors = Cors.of(self.config.cors)
        if self.config.keys:
            self.handler.service.keyring = Keyring(
                self.config.keys, now=time.monotonic(), forward=self.config.forward_keys
            )
        self.server = DataServer(self.handler, self._server_limits)
        tls = self.config.listen.tls
        await self.server.start("127.0.0.1", 0, tls=None if tls is None else server_context(tls))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        for pool in self.pools:
            pool.abort()

    async def settled(self, timeout: float = 5.0) -> None:
        """Wait until nothing is under way, and check that nothing was left behind."""
        async with asyncio.timeout(timeout):
            while self.lifecycle.inside or any(pool.busy for pool in self.pools):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
        self.check_clean()

    def check_clean(self) -> None:
        """Nothing queued, in flight, leased or held."""
        assert self.handler.service.held.now == 0
        for pool in self.pools:
            stats = pool.stats()
            assert stats["queue"]["requests"] == 0, stats
            assert stats["queue"]["items"] == 0, stats
            assert stats["queue"]["tokens"] == 0, stats
            assert stats["inflight"] == 0, stats
            assert stats["inflight_calls"] == 0, stats
            assert stats["leases"] == 0, stats
            pool.ledger.check()
            for upstream in stats["upstreams"]:
                assert upstream["inflight"] == 0, stats
                assert upstream["work_tokens"] == 0, stats
