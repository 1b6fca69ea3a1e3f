"""What differs between two configurations, and how far a running proxy can follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from proxy.config.model import Config, PoolConfig

__all__ = ["LIVE_POOL_KEYS", "Change", "compare", "keeps_controller", "needs_new_pool"]

LIVE_POOL_KEYS = frozenset({"check_merged_every", "slo", "law", "law_options", "fallback", "predictor"})
"""Keys of a pool that take effect in place, without losing what its controller or its predictor has learned."""

_LIVE = frozenset({"pools", "drain", "log", "keys", "forward_keys"})
"""Sections that follow a reload; the others belong to sockets that are open already."""


class Change(NamedTuple):
    """Keys that differ."""

    changed: tuple[str, ...]
    """Those that take effect."""
    restart_required: tuple[str, ...]
    """Those that need another process."""


def compare(old: Config, new: Config) -> Change:
    """Return what differs, as dotted keys; pools are named, `pools.chat.slo`."""
    changed: list[str] = []
    restart: list[str] = []
    for key in Config.model_fields:
        if key == "pools" or getattr(old, key) == getattr(new, key):
            continue
        (changed if key in _LIVE else restart).extend(_differing(key, getattr(old, key), getattr(new, key)))
    before = {pool.name: pool for pool in old.pools}
    after = {pool.name: pool for pool in new.pools}
    for name in [*before, *(name for name in after if name not in before)]:
        if name in before and name in after:
            changed += _differing(f"pools.{name}", before[name], after[name])
        else:
            changed.append(f"pools.{name}")
    if list(before) != list(after) and not changed:
        changed.append("pools")
    return Change(tuple(changed), tuple(restart))


def _differing(prefix: str, old: Any, new: Any) -> list[str]:
    if not hasattr(type(old), "model_fields"):
        return [prefix] if old != new else []
    return [f"{prefix}.{key}" for key in type(old).model_fields if getattr(old, key) != getattr(new, key)]


def needs_new_pool(old: PoolConfig, new: PoolConfig) -> bool:
    """Return whether a pool must be built anew; otherwise its controller can follow in place."""
    return any(getattr(old, key) != getattr(new, key) for key in PoolConfig.model_fields if key not in LIVE_POOL_KEYS)


def keeps_controller(old: PoolConfig, new: PoolConfig) -> bool:
    """Return whether what the controller of a rebuilt pool has learned still holds: same setpoints, same dispatch."""
    return old.setpoints == new.setpoints and old.dispatch == new.dispatch
