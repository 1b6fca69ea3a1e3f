"""Which pool takes a request: path first, then the model that it names."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from proxy.pool import Pool
from proxy.wire.base import Route, WireFormat
from proxy.wire.registry import detect

__all__ = ["Candidate", "RouteTable"]

_CACHED = 1024


class Candidate(NamedTuple):
    """A pool whose path globs match, and what the request is in its wire format."""

    pool: Pool
    wire: WireFormat
    route: Route


class RouteTable:
    """An immutable snapshot of pools in order. What was looked up before costs one dictionary access."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        self._by_path: dict[tuple[str, str], tuple[Candidate, ...]] = {}

    def candidates(self, method: str, path: str) -> tuple[Candidate, ...]:
        """Return the pools that take `path`, in order."""
        found = self._by_path.get((method, path))
        if found is None:
            found = tuple(
                Candidate(pool, *detect(method, path, pool.config.wire))
                for pool in self.pools
                if _matches(pool.config.match.paths, path)
            )
            if len(self._by_path) >= _CACHED:
                self._by_path.clear()
            self._by_path[method, path] = found
        return found

    def choose(self, candidates: tuple[Candidate, ...], model: str) -> Candidate | None:
        """Return the first candidate that serves `model`; None when none does."""
        if len(candidates) == 1 and candidates[0].pool.any_model:
            return candidates[0]
        for candidate in candidates:
            if candidate.pool.any_model or _matches(candidate.pool.config.match.models, model):
                return candidate
        return None


def _matches(globs: Sequence[str], text: str) -> bool:
    return any(glob == "*" or fnmatchcase(text, glob) for glob in globs)
