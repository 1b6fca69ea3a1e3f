"""Which pool takes a request: path first, then the model that it names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

from proxy.dispatch.pool import Pool
from proxy.upstream.endpoint import Endpoint
from proxy.wire.base import Route, WireFormat
from proxy.wire.kept import Place, place_of
from proxy.wire.registry import certain, detect

__all__ = ["Candidate", "RouteTable"]

_CACHED: Final = 1024
_LONGEST: Final = 256
"""Characters of a path that is remembered: a caller chooses them."""
_SHOWN: Final = 8


class Candidate:
    """A pool whose path globs match, and what the request is in its wire format. Nobody changes one."""

    __slots__ = ("by_model", "certain", "place", "pool", "route", "wire")

    def __init__(
        self, pool: Pool, wire: WireFormat, route: Route, *, by_model: bool, place: Place | None, certain: bool
    ) -> None:
        self.pool = pool
        self.wire = wire
        self.route = route
        self.by_model = by_model
        """Whether the model decides: pools tell models apart, or one has a name of its own for them."""
        self.place = place
        """What it has to do with ids of what upstreams keep; None for nothing."""
        self.certain = certain
        """Whether a body that is not the format's can only be a mistake in it."""


class RouteTable:
    """An immutable snapshot of pools in order. What was looked up before costs one dictionary access."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.pools = tuple(pools)
        self._by_name = {pool.name: pool for pool in self.pools}
        self._by_path: dict[tuple[str, str], tuple[Candidate, ...]] = {}
        for pool in self.pools:
            pool.holding.elsewhere = partial(self._is_elsewhere, pool)

    def candidates(self, method: str, path: str) -> tuple[Candidate, ...]:
        """Return the pools that take `path`, in order."""
        found = self._by_path.get((method, path))
        if found is None:
            pools = [pool for pool in self.pools if _matches(pool.config.match.paths, path)]
            by_model = any(not pool.terms.any_model or pool.terms.renames for pool in pools)
            found = tuple([_candidate(pool, method, path, by_model) for pool in pools])
            if len(path) <= _LONGEST:
                if len(self._by_path) >= _CACHED:
                    self._by_path.clear()
                self._by_path[method, path] = found
        return found

    def fallback(self, pool: Pool, cause: str) -> Pool | None:
        """Return the pool that takes what `pool` cannot because of `cause`; None when there is none.

        One that has no upstream to ask is passed over for the one that takes what it cannot.
        """
        while True:
            wanted = pool.config.fallback
            other = self._by_name.get(wanted.pool) if wanted is not None and cause in wanted.on else None
            if other is None or not other.holding.on:
                return other
            pool, cause = other, "no_upstream"

    def fallbacks(self, pool: Pool) -> Iterator[Pool]:
        """Yield the pools that take what `pool` cannot, whatever the cause; circles are refused before."""
        while (wanted := pool.config.fallback) is not None and wanted.pool in self._by_name:
            pool = self._by_name[wanted.pool]
            yield pool

    def keeper(self, pool: Pool, ids: Sequence[str]) -> Endpoint | None:
        """Return the upstream of `pool` that keeps the first of `ids` of which that is known, in whatever pool."""
        for id in ids:
            for each in (pool, *self.pools):
                name = None if each.keepers is None else each.keepers.find(id)
                endpoint = None if name is None else pool.group.called(name)
                if endpoint is not None:
                    return endpoint
        return None

    def _is_elsewhere(self, pool: Pool) -> bool:
        return pool.config.fallback is not None and self.fallback(pool, "no_upstream") is not None

    def known_paths(self) -> str:
        """Say which paths are taken."""
        return _listed("Pools take", [(pool.name, pool.config.match.paths) for pool in self.pools])

    def known_models(self, candidates: tuple[Candidate, ...]) -> str:
        """Say which models are served on a path."""
        pools = [candidate.pool for candidate in candidates]
        return _listed("Pools serve", [(pool.name, pool.config.match.models) for pool in pools])

    def choose(self, candidates: tuple[Candidate, ...], model: str) -> Candidate | None:
        """Return the first candidate that serves `model`; None when none does."""
        if len(candidates) == 1 and candidates[0].pool.terms.any_model:
            return candidates[0]
        for candidate in candidates:
            if candidate.pool.terms.any_model or _matches(candidate.pool.config.match.models, model):
                return candidate
        return None


def _candidate(pool: Pool, method: str, path: str, by_model: bool) -> Candidate:
    wire, route = detect(method, path, pool.config.wire)
    place = place_of(method, path) if pool.keepers is not None else None
    sure = certain(wire, path, pool.config.wire)
    return Candidate(pool, wire, route, by_model=by_model, place=place, certain=sure)


def _matches(globs: Sequence[str], text: str) -> bool:
    return any(glob == "*" or fnmatchcase(text, glob) for glob in globs)


def _listed(begin: str, entries: Sequence[tuple[str, Sequence[str]]]) -> str:
    """Return pools with their globs, no more than somebody will read."""
    shown = [f"{', '.join(globs[:_SHOWN])} ({name})" for name, globs in entries if globs]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{begin}: {'; '.join(shown[:_SHOWN])}{more}." if shown else ""
