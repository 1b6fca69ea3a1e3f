"""Upstreams as a pool's configuration describes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from proxy.config.model import PoolConfig, UpstreamConfig
from proxy.profile import load_profile
from proxy.tls import client_context
from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint, HealthRules
from proxy.upstream.exchange import Patience
from proxy.upstream.group import Group
from proxy.upstream.retry import RetryBudget
from proxy.upstream.routing import LeastWork

__all__ = ["build_group"]

_IDLE_SHARE = 0.8
"""Our idle connections are closed after this share of the server's own limit, so that it never does it first."""


def build_group(config: PoolConfig, *, on_retry: Callable[[], None] = lambda: None) -> Group:
    """Make the group of a pool's endpoints. Call it inside a running event loop. Raises ValueError."""
    timeouts, retries = config.timeouts, config.retries
    return Group(
        [_endpoint(config, upstream) for upstream in config.upstreams],
        LeastWork(),
        Patience(
            connect_s=timeouts.connect_ms / 1000.0,
            first_byte_s=timeouts.first_byte_ms / 1000.0,
            between_s=timeouts.between_chunks_ms / 1000.0,
        ),
        RetryBudget(ratio=retries.budget_ratio, min_per_s=retries.budget_min_per_s, now=monotonic()),
        max_retries=retries.max,
        on_retry=on_retry,
    )


def _endpoint(config: PoolConfig, upstream: UpstreamConfig) -> Endpoint:
    tls = upstream.tls
    address = (
        Address.of(upstream.url) if tls is None else Address.of(upstream.url, client_context(tls), tls.server_name)
    )
    health, connections = config.health, config.connections
    profile = load_profile(upstream.profile)
    idle_s = connections.idle_ms / 1000.0
    if profile.keepalive_s is not None:
        idle_s = min(idle_s, _IDLE_SHARE * profile.keepalive_s)
    return Endpoint(
        address,
        ConnectionPool(asyncio.get_running_loop(), address, limit=connections.max, idle_s=idle_s),
        weight=upstream.weight,
        profile=upstream.profile,
        model=upstream.model,
        api_key=None if upstream.api_key is None else upstream.api_key.get_secret_value().encode(),
        health_path=health.path or profile.health.path,
        rules=HealthRules(
            eject_after=health.eject_after,
            eject_s=health.eject_ms / 1000.0,
            unhealthy_after=health.unhealthy_after,
            healthy_after=health.healthy_after,
        ),
    )
