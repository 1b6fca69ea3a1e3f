"""Outcomes to train on: the newest of every length and model, so that rare lengths are not drowned by common ones.

Strata are (model, log2 of the length), each a ring of its newest rows. Keeping equally many of each would teach the
wrong distribution, so every row carries the weight that undoes it: a full ring that reaches back over `span`
outcomes stands for all of its stratum in that span, hence weight 1/span.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Collection, Sequence
from struct import Struct
from typing import NamedTuple

__all__ = ["FADED", "Reservoir", "Row", "Stratum"]

FADED = 0.25
"""Weight of rows from before a drift."""

_MAX_FADED = 1_024
"""So many models are remembered to have drifted, the latest."""
_HEAD = Struct("<qdd?I")


class Row(NamedTuple):
    """One outcome of a model."""

    seq: int
    """Its place in the stream of outcomes, from 0."""
    at: float
    """When it was admitted, seconds of the predictor's clock."""
    tokens: float
    censored: bool
    features: bytes
    """Packed doubles."""
    tenant: str

    def pack(self) -> bytes:
        """Return the row as bytes, which is how it is kept: thousands of objects less for the collector to walk."""
        head = _HEAD.pack(self.seq, self.at, self.tokens, self.censored, len(self.features))
        return head + self.features + self.tenant.encode("utf-8", "surrogatepass")

    @classmethod
    def read(cls, packed: bytes) -> Row:
        """Return what `pack` packed."""
        seq, at, tokens, censored, size = _HEAD.unpack_from(packed)
        end = _HEAD.size + size
        tenant = packed[end:].decode("utf-8", "surrogatepass")
        return cls(seq, at, tokens, censored, packed[_HEAD.size : end], tenant)


class Stratum(NamedTuple):
    """The packed rows of one stratum, and how many rows of the stream each of them stands for."""

    model: str
    rows: Sequence[bytes]
    weight: float
    """Relative to the others."""
    faded: int
    """Rows before this place in the stream count FADED times as much."""


class Reservoir:
    """Bounded store of rows: `per_stratum` newest of each stratum, `capacity` in all."""

    def __init__(self, *, per_stratum: int = 2_000, capacity: int = 16_000) -> None:
        self._per_stratum = per_stratum
        self._capacity = capacity
        self._strata: dict[tuple[str, int], deque[bytes]] = {}
        """None of them is empty, so there are at most `capacity`, whatever models are named."""
        self._by_size: dict[int, dict[tuple[str, int], None]] = {}
        """Strata by their number of rows, so that the largest is found without looking at all."""
        self._largest = 0
        self._overflowed: set[tuple[str, int]] = set()
        self._faded: dict[str, int] = {}
        self._size = 0
        self.groups: Counter[tuple[str, str]] = Counter()
        """Rows kept per (model, tenant)."""
        self._first = 0
        self.seen = 0
        """The number of the next outcome."""

    def __len__(self) -> int:
        return self._size

    def add(
        self, features: Sequence[float], tokens: float, *, censored: bool, model: str, tenant: str, at: float
    ) -> None:
        """Take in one outcome."""
        key = (model, int(tokens + 1).bit_length())
        stratum = self._strata.get(key)
        if stratum is None:
            stratum = self._strata[key] = deque(maxlen=self._per_stratum)
        if len(stratum) == self._per_stratum:
            self._leave(model, stratum[0])
            self._overflowed.add(key)
        else:
            self._resized(key, len(stratum), len(stratum) + 1)
        self._size += 1
        self.groups[model, tenant] += 1
        packed = struct.pack(f"<{len(features)}d", *features)
        stratum.append(Row(self.seen, at, tokens, censored, packed, tenant).pack())
        self.seen += 1
        if self._size > self._capacity:
            self._shrink()

    def start_at(self, number: int) -> None:
        """Number outcomes from `number` on, if that is above what they are numbered now."""
        if number > self.seen:
            self._first += number - self.seen
            self.seen = number

    def snapshot(self, models: Collection[str] | None = None) -> list[Stratum]:
        """Return every stratum of `models`, None for all. Nothing is copied: whoever takes time over a stratum does.

        Rows that come after this have later places in the stream.
        """
        span = self.seen - self._first
        return [
            Stratum(
                key[0],
                rows,
                span / (self.seen - Row.read(rows[0]).seq if key in self._overflowed else span),
                self._faded.get(key[0], 0),
            )
            for key, rows in self._strata.items()
            if rows and (models is None or key[0] in models)
        ]

    def fade(self, model: str) -> None:
        """After a drift: a model's rows so far teach the old lengths, so they count less. Nothing is thrown away."""
        self._faded.pop(model, None)
        self._faded[model] = self.seen
        if len(self._faded) > _MAX_FADED:
            del self._faded[next(iter(self._faded))]

    def _shrink(self) -> None:
        key = next(iter(self._by_size[self._largest]))
        stratum = self._strata[key]
        self._leave(key[0], stratum.popleft())
        self._resized(key, len(stratum) + 1, len(stratum))
        if stratum:
            self._overflowed.add(key)
        else:
            del self._strata[key]
            self._overflowed.discard(key)

    def _resized(self, key: tuple[str, int], before: int, after: int) -> None:
        """Take note that a stratum has `after` rows and had `before`, one more or less."""
        if before:
            alike = self._by_size[before]
            del alike[key]
            if not alike:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, {})[key] = None
        if after > self._largest or self._largest not in self._by_size:
            self._largest = after

    def _leave(self, model: str, packed: bytes) -> None:
        self._size -= 1
        group = model, Row.read(packed).tenant
        self.groups[group] -= 1
        if not self.groups[group]:
            del self.groups[group]
