"""Open files: every connection is one, so the limit on them is the limit on connections."""

from __future__ import annotations

import logging
import resource

from proxy.config.model import Config

__all__ = ["let_in", "needed", "raise_limit"]

_LOG = logging.getLogger("trimtab")
_OTHERS = 128
"""Listeners, logs, the state file, probes, and what the interpreter has open."""


def needed(config: Config) -> int:
    """Return how many files may be open at once under `config`, if clients use all connections they may have.

    Each of theirs has one to an upstream; more to upstreams are kept than there are clients only while idle.
    """
    upstreams = sum(pool.connections.max * len(pool.upstreams) for pool in config.pools)
    clients = config.limits.max_connections
    return clients + min(upstreams, clients) + config.admin.max_connections + _OTHERS


def let_in(config: Config, limit: int) -> int:
    """Return how many client connections fit under `limit`, at most as many as `config` allows, but 1.

    A descriptor for an upstream is kept for each, so that no crowd of clients can take those; and the admin listener
    has its own. A process that had none left could accept nobody, and could tell nobody.
    """
    wanted = config.limits.max_connections
    short = needed(config) - limit
    if short <= 0 or limit == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (limit - config.admin.max_connections - _OTHERS) // 2))


def raise_limit(wanted: int) -> int:
    """Raise the limit of this process towards `wanted` as far as the system lets us; return it, and warn if short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return soft
    reached = wanted if hard == unlimited else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reached, hard))
    if reached < wanted:
        _LOG.warning(
            "only %d files may be open, limits.max_connections needs %d: fewer clients are let in; "
            "raise it with `ulimit -n`, LimitNOFILE of systemd or --ulimit nofile of Docker",
            reached,
            wanted,
        )
    return reached
