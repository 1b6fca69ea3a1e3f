"""What a pool's configuration means to the requests that come to it."""

from __future__ import annotations

from proxy.config.model import PoolConfig
from proxy.profile import load_profile
from proxy.rules import ClassRules
from proxy.wire.base import Call, Route

__all__ = ["Terms"]


class Terms:
    """One snapshot of a pool's configuration, worked out once for all requests. Times in seconds."""

    __slots__ = (
        "_dispatch",
        "_merged_routes",
        "_profiles",
        "any_model",
        "bounds_unknown",
        "keepalive_s",
        "max_wait_s",
        "pads",
        "rules",
        "total_s",
        "upstream_wait_s",
    )

    def __init__(self, config: PoolConfig) -> None:
        self._dispatch = config.dispatch
        self._profiles = tuple([load_profile(upstream.profile) for upstream in config.upstreams])
        self._merged_routes: dict[str, bool] = {}
        self.any_model = "*" in config.match.models
        """Whether the pool takes requests whatever model they name."""
        self.bounds_unknown = _bounds_unknown(config)
        """Whether POSTs that no format claims wait their turn as work does, whatever is promised later on."""
        self.pads = any(profile.pads for profile in self._profiles)
        """Whether an upstream pads a batch to its longest item."""
        self.rules = {name: ClassRules(klass) for name, klass in config.classes.items()}
        """What each class means."""
        self.total_s: float = config.timeouts.total_ms / 1000.0
        self.keepalive_s: float | None = config.keepalive.interval_ms / 1000.0 if config.keepalive.enabled else None
        """Silence after which waiting streams get a comment; None for never."""
        self.max_wait_s: float = config.queue.max_wait_ms / 1000.0
        self.upstream_wait_s: float = config.queue.upstream_wait_ms / 1000.0

    def mergeable(self, call: Call) -> bool:
        """Whether `call` is to share upstream calls with others."""
        if call.compat_key is None:
            return False
        merged = self._merged_routes.get(call.route.name)
        if merged is None:
            merged = self._merged_routes[call.route.name] = self._merges(call.route)
        return merged

    def _merges(self, route: Route) -> bool:
        """Whether the proxy makes the batches for `route`: as configured, else as every upstream would have it."""
        if self._dispatch != "auto":
            return self._dispatch == "merge"
        return all(
            route.auto_merge if profile.name == "auto" else profile.dispatch_for(route.name) == "merge"
            for profile in self._profiles
        )


_ASKED_FOR = frozenset({"dispatch", "law", "setpoints", "slo"})
"""Keys whose presence says that somebody wants this pool's load bounded."""


def _bounds_unknown(config: PoolConfig) -> bool:
    if config.wire in ("opaque", "passthrough"):
        return config.wire == "opaque"
    promised = any(klass.slo is not None or klass.deadline_ms is not None for klass in config.classes.values())
    return promised or not _ASKED_FOR.isdisjoint(config.model_fields_set)
