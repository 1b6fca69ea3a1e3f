"""What a pool's configuration means to the requests that come to it."""

from __future__ import annotations

from enum import IntEnum
from math import inf

from proxy.config.model import PoolConfig
from proxy.config.profile import load_profile
from proxy.config.rules import ClassRules
from proxy.wire.base import Route

__all__ = ["Merging", "Terms"]


class Merging(IntEnum):
    """Whether calls of an operation share upstream calls."""

    NEVER = 0
    RECOGNISED = 1
    """Where its upstreams were recognised as servers of its protocol."""
    VOUCHED = 2
    """As the operator or the upstreams' profiles say."""


class Terms:
    """One snapshot of a pool's configuration, worked out once for all requests. Times in seconds."""

    __slots__ = (
        "_dispatch",
        "_merged_routes",
        "_named",
        "_profiles",
        "any_model",
        "bounds_unknown",
        "check_merged_every",
        "classes",
        "default_class",
        "keepalive_s",
        "max_wait_s",
        "pads",
        "pool",
        "renames",
        "rules",
        "total_s",
        "upstream_wait_s",
    )

    def __init__(self, config: PoolConfig) -> None:
        self._dispatch = config.dispatch
        self.pool = config.name
        self._named = config.wire != "auto"
        self._profiles = tuple([load_profile(upstream.profile) for upstream in config.upstreams])
        self._merged_routes: dict[str, Merging] = {}
        self.check_merged_every = config.check_merged_every
        """Of so many merged calls one has a member asked again alone; 0 for never."""
        self.any_model = "*" in config.match.models
        """Whether the pool takes requests whatever model they name."""
        self.bounds_unknown = _bounds_unknown(config)
        """Whether POSTs that no format claims wait their turn as work does, whatever is promised later on."""
        self.renames = any(upstream.model is not None for upstream in config.upstreams)
        """Whether an upstream is to be told another model than the caller names."""
        self.pads = any(profile.pads for profile in self._profiles)
        """Whether an upstream pads a batch to its longest item."""
        self.rules = {name: ClassRules(klass) for name, klass in config.classes.items()}
        """What each class means."""
        self.classes = config.classes
        self.default_class = config.default_class
        total_ms = config.timeouts.total_ms
        self.total_s: float = inf if total_ms is None else total_ms / 1000.0
        self.keepalive_s: float | None = config.keepalive.interval_ms / 1000.0 if config.keepalive.enabled else None
        """Silence after which waiting streams get a comment; None for never."""
        self.max_wait_s: float = config.queue.max_wait_ms / 1000.0
        self.upstream_wait_s: float = config.queue.upstream_wait_ms / 1000.0

    def merging(self, route: Route) -> Merging:
        """Return whether the proxy makes the batches for `route`."""
        merged = self._merged_routes.get(route.name)
        if merged is None:
            merged = self._merged_routes[route.name] = self._merges(route)
        return merged

    def _merges(self, route: Route) -> Merging:
        """As configured, else as every upstream would have it.

        Of an upstream without a profile only the protocol is known, if at all: the pool's `wire` names it, or its
        answers show it. Whether others than lists by definition may be merged there, nobody has said.
        """
        if self._dispatch != "auto":
            return Merging.VOUCHED if self._dispatch == "merge" else Merging.NEVER
        found = Merging.VOUCHED
        for profile in self._profiles:
            if profile.name != "auto":
                wanted = Merging.VOUCHED if profile.dispatch_for(route.name) == "merge" else Merging.NEVER
            elif route.auto_merge:
                wanted = Merging.VOUCHED if self._named else Merging.RECOGNISED
            else:
                wanted = Merging.NEVER
            found = min(found, wanted)
        return found


_ASKED_FOR = frozenset({"dispatch", "law", "setpoints", "slo"})
"""Keys whose presence says that somebody wants this pool's load bounded."""


def _bounds_unknown(config: PoolConfig) -> bool:
    if config.wire in ("opaque", "passthrough"):
        return config.wire == "opaque"
    promised = any(klass.slo is not None or klass.deadline_ms is not None for klass in config.classes.values())
    return promised or not _ASKED_FOR.isdisjoint(config.model_fields_set)
