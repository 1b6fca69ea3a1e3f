"""Upstreams as a pool's configuration describes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

from proxy.config.certificates import client_context
from proxy.config.model import PoolConfig, UpstreamConfig
from proxy.config.profile import load_profile
from proxy.upstream.address import Address
from proxy.upstream.connections import ConnectionPool
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Patience
from proxy.upstream.group import Group
from proxy.upstream.retry import RetryBudget
from proxy.upstream.routing import LeastWork, PrefixAffinity, RoundRobin, Router, Sticky
from proxy.upstream.signals import SignalPoller, Watched
from proxy.upstream.standing import HealthRules

__all__ = ["build_group", "build_poller"]

_IDLE_SHARE = 0.8
"""Our idle connections are closed after this share of the server's own limit, so that it never does it first."""


def build_group(
    config: PoolConfig,
    *,
    on_retry: Callable[[], None] = lambda: None,
    on_vain: Callable[[str, int], None] = lambda upstream, status: None,
) -> Group:
    """Make the group of a pool's endpoints. Call it inside a running event loop. Raises ValueError."""
    timeouts, retries = config.timeouts, config.retries
    return Group(
        [_endpoint(config, upstream) for upstream in config.upstreams],
        _router(config),
        Patience(
            connect_s=timeouts.connect_ms / 1000.0,
            first_byte_s=timeouts.first_byte_ms / 1000.0,
            between_s=timeouts.between_chunks_ms / 1000.0,
        ),
        RetryBudget(ratio=retries.budget_ratio, min_per_s=retries.budget_min_per_s, now=monotonic()),
        max_retries=retries.max,
        causes=frozenset(retries.on),
        on_retry=on_retry,
        on_vain=on_vain,
    )


def build_poller(config: PoolConfig, endpoints: Sequence[Endpoint]) -> SignalPoller:
    """Return what reads the metrics of those upstreams whose profile names some that tell their load."""
    signals = config.signals
    interval_s = signals.interval_ms / 1000.0
    watched = [
        Watched(endpoint, profile, interval_s)
        for endpoint in endpoints
        if signals.enabled and (profile := load_profile(endpoint.profile)).says_load
    ]
    return SignalPoller(watched, interval_s=interval_s, timeout_s=signals.timeout_ms / 1000.0)


def _endpoint(config: PoolConfig, upstream: UpstreamConfig) -> Endpoint:
    tls = upstream.tls
    address = (
        Address.of(upstream.url) if tls is None else Address.of(upstream.url, client_context(tls), tls.server_name)
    )
    health, connections = config.health, config.connections
    profile = load_profile(upstream.profile)
    own_key, idle_s = upstream.api_key, connections.idle_ms / 1000.0
    if profile.keepalive_s is not None:
        idle_s = min(idle_s, _IDLE_SHARE * profile.keepalive_s)
    endpoint = Endpoint(
        address,
        ConnectionPool(
            asyncio.get_running_loop(),
            address,
            limit=connections.max,
            idle_s=idle_s,
            max_age_s=connections.max_age_ms / 1000.0 or inf,
        ),
        weight=upstream.weight,
        profile=upstream.profile,
        model=upstream.model,
        credential=(
            None
            if own_key is None
            else _credential(upstream.api_key_header or profile.credential_header, own_key.get_secret_value())
        ),
        strips_credentials=upstream.client_credentials == "strip"
        or (upstream.client_credentials == "auto" and own_key is not None),
        health_path=health.path or profile.health.path,
        hints="hint" in profile.predictor,
        rules=HealthRules(
            eject_after=health.eject_after,
            trial_s=health.eject_ms / 1000.0,
            unhealthy_after=health.unhealthy_after,
            healthy_after=health.healthy_after,
        ),
        slow_start_s=config.routing.slow_start_ms / 1000.0,
    )
    if health.path is None:
        # What a kind of server is known to have belongs to no version of its API.
        endpoint.health_prefix = address.root
    return endpoint


def _router(config: PoolConfig) -> Router:
    routing = config.routing
    if routing.strategy == "round-robin":
        return RoundRobin()
    if routing.strategy == "sticky":
        return Sticky()
    if routing.strategy == "prefix" and len(config.upstreams) > 1:
        return PrefixAffinity(max_blocks=routing.max_blocks, max_load_factor=routing.max_load_factor)
    return LeastWork()


def _credential(header: str, key: str) -> bytes:
    """Return the header line that shows `key`."""
    value = f"Bearer {key}" if header.lower() == "authorization" else key
    return f"{header}: {value}\r\n".encode()
