"""Which upstream gets the next call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import ceil, log
from typing import Final

from proxy.request import AffinityKey
from proxy.upstream.endpoint import Endpoint

__all__ = ["LeastWork", "PrefixAffinity", "RoundRobin", "Router", "Sticky"]

_MAX_HOLDERS: Final = 4
_HASH_BYTES: Final = 8


class Router(ABC):
    """Picks among endpoints."""

    __slots__ = ()

    def pick(
        self,
        endpoints: Sequence[Endpoint],
        now: float,
        *,
        work: float = 0.0,
        exclude: Collection[Endpoint] = (),
        key: AffinityKey | None = None,
    ) -> Endpoint | None:
        """Return the endpoint to ask for a call of `work` tokens, None when none can be.

        Overloaded ones are asked where there is no other, and ejected ones where there is not even that.
        `exclude` names those tried already. `key` says which calls had better go to the same one.
        """
        if len(endpoints) == 1:
            only = endpoints[0]
            return only if only not in exclude and (only.available(now) or only.reachable) else None
        candidates = [endpoint for endpoint in endpoints if endpoint not in exclude and endpoint.available(now)]
        if not candidates:
            candidates = [each for each in endpoints if each not in exclude and each.last_resort(now)]
        if not candidates:
            # Ejection spares the others' callers a failure. Where there are no others, it would only refuse.
            candidates = [each for each in endpoints if each not in exclude and each.reachable]
        return self.among(candidates, now, work, key) if candidates else None

    @abstractmethod
    def among(self, candidates: Sequence[Endpoint], now: float, work: float, key: AffinityKey | None) -> Endpoint:
        """Return whom to ask of `candidates`, of which there is at least one."""


class RoundRobin(Router):
    """Send to each in turn, more often where the weight is higher (smooth weighted round robin)."""

    __slots__ = ("_credit",)

    def __init__(self) -> None:
        self._credit: dict[Endpoint, float] = {}

    def among(self, candidates: Sequence[Endpoint], now: float, work: float, key: AffinityKey | None) -> Endpoint:
        """Return whose turn it is."""
        credit = self._credit
        total = 0.0
        for endpoint in candidates:
            share = endpoint.share(now)
            credit[endpoint] = credit.get(endpoint, 0.0) + share
            total += share
        best = max(candidates, key=lambda endpoint: credit[endpoint])
        credit[best] -= total
        return best


class LeastWork(Router):
    """Send to whoever has the least predicted work outstanding relative to its weight; equals take weighted turns."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = RoundRobin()

    def among(self, candidates: Sequence[Endpoint], now: float, work: float, key: AffinityKey | None) -> Endpoint:
        """Return the least loaded."""
        if len(candidates) == 1:
            return candidates[0]
        scores = [endpoint.score(work, now) for endpoint in candidates]
        least = min(scores)
        equals = [endpoint for endpoint, score in zip(candidates, scores, strict=True) if score == least]
        return equals[0] if len(equals) == 1 else self._turns.among(equals, now, work, key)


class Sticky(Router):
    """Send equal keys to the same endpoint, as long as it may be asked (weighted rendezvous hashing).

    The endpoint with the greatest -w / ln(h) wins, where h in (0, 1) is a hash of key and endpoint and w its weight
    (Schindelhauer and Schomaker, "Weighted distributed hash tables", 2005): one that goes away moves only its own
    keys, they come back with it, and every worker and every run decides alike. Calls without a key go by work.
    """

    __slots__ = ("_spread",)

    def __init__(self) -> None:
        self._spread = LeastWork()

    def among(self, candidates: Sequence[Endpoint], now: float, work: float, key: AffinityKey | None) -> Endpoint:
        """Return the one that the key belongs to."""
        if not isinstance(key, bytes):
            return self._spread.among(candidates, now, work, key)
        return max(candidates, key=lambda endpoint: _rendezvous(key, endpoint, now))


class PrefixAffinity(Router):
    """Send a prompt to where its beginning was sent before, so that the server's own prefix cache serves it.

    Remembered are the latest `max_blocks` blocks, each with the endpoints that have had it. The holder of the
    longest known beginning wins, unless it has more calls than `max_load_factor` times its share by weight of all
    that are under way (consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2016): a hot
    prefix then gets a second holder. What nobody has had goes by work.
    """

    __slots__ = ("_factor", "_holders", "_max_blocks", "_spread")

    def __init__(self, *, max_blocks: int, max_load_factor: float) -> None:
        self._max_blocks = max_blocks
        self._factor = max_load_factor
        self._holders: OrderedDict[int, tuple[Endpoint, ...]] = OrderedDict()
        self._spread = LeastWork()

    def __len__(self) -> int:
        """Return how many blocks are remembered."""
        return len(self._holders)

    def among(self, candidates: Sequence[Endpoint], now: float, work: float, key: AffinityKey | None) -> Endpoint:
        """Return who has the beginning of the prompt, or is to have it."""
        if not key or isinstance(key, bytes):
            return self._spread.among(candidates, now, work, key)
        chosen = self._holder(key, candidates, now, work) or self._spread.among(candidates, now, work, key)
        self._remember(key, chosen)
        return chosen

    def _holder(
        self, blocks: tuple[int, ...], candidates: Sequence[Endpoint], now: float, work: float
    ) -> Endpoint | None:
        known = self._holders
        if blocks[0] not in known:
            return None
        total = sum([endpoint.share(now) for endpoint in candidates])
        calls = self._factor * (1 + sum([endpoint.inflight for endpoint in candidates]))
        for block in reversed(blocks):
            near = [
                endpoint
                for endpoint in known.get(block, ())
                if endpoint in candidates and endpoint.inflight < ceil(calls * endpoint.share(now) / total)
            ]
            if near:
                return min(near, key=lambda endpoint: endpoint.score(work, now))
        return None

    def _remember(self, blocks: tuple[int, ...], chosen: Endpoint) -> None:
        known = self._holders
        for block in blocks:
            holders = known.get(block, ())
            if chosen not in holders:
                known[block] = (chosen, *holders)[:_MAX_HOLDERS]
            known.move_to_end(block)
        while len(known) > self._max_blocks:
            known.popitem(last=False)


def _rendezvous(key: bytes, endpoint: Endpoint, now: float) -> float:
    digest = blake2b(key, digest_size=_HASH_BYTES, key=endpoint.hash_key).digest()
    unit = (int.from_bytes(digest) + 1) / (256**_HASH_BYTES + 1)
    return -endpoint.share(now) / log(unit)
