"""Which upstream keeps what: responses, conversations, files and their like are known to their maker alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Final

__all__ = ["LONGEST_ID", "MOST_IDS", "Keepers", "digest_of"]

MOST_IDS: Final = 32_768
"""So many are remembered, the latest used. Each takes the same few hundred bytes, however long it is."""
LONGEST_ID: Final = 256
"""Characters of an id that is remembered."""
_MOST_NEWS: Final = 4_096
"""So many may wait to be told to other processes; of more, the oldest stay untold."""


class Keepers:
    """Remembers for each id the upstream that made it or was seen to serve it. Ids are kept as hashes.

    What an upstream made is its own, whoever was thought to have it. What it merely served says less: callers write
    those ids, so that is believed only of ids that nobody is known to keep. Only the upstreams called `names` are
    remembered.
    """

    __slots__ = ("_known", "_limit", "_names", "_news", "on_news", "seek")

    def __init__(self, names: Iterable[str], limit: int = MOST_IDS) -> None:
        self._names = frozenset(names)
        self._limit = limit
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._news: dict[bytes, str] = {}
        self.on_news: Callable[[], None] | None = None
        """Called when there is something to `take` and was nothing before; None where no other process shares it."""
        self.seek: Callable[[list[str]], Awaitable[None]] | None = None
        """Has the others asked for what is behind digests, and `hear`s it; None where there are no others."""

    def __len__(self) -> int:
        """Return how many ids are remembered."""
        return len(self._known)

    @property
    def empty(self) -> bool:
        """Whether nothing at all is remembered."""
        return not self._known

    def find(self, id: str) -> str | None:
        """Return the name of the upstream that keeps `id`; None where that is not known."""
        if not self._known or len(id) > LONGEST_ID:
            return None
        digest = digest_of(id)
        name = self._known.get(digest)
        if name is not None:
            self._known.move_to_end(digest)
        return name

    def made(self, id: str, name: str) -> None:
        """The upstream called `name` has just made `id`."""
        if 0 < len(id) <= LONGEST_ID and name in self._names:
            digest = digest_of(id)
            if self._known.get(digest) != name:
                self._tell(digest, name)
            self._keep(digest, name)

    def served(self, id: str, name: str) -> None:
        """The upstream called `name` knew what `id` is."""
        if 0 < len(id) <= LONGEST_ID and name in self._names:
            digest = digest_of(id)
            if digest in self._known:
                self._known.move_to_end(digest)
            else:
                self._tell(digest, name)
                self._keep(digest, name)

    def retain(self, names: Iterable[str]) -> None:
        """Let go of everything that other upstreams than those called `names` keep."""
        self._names = frozenset(names)
        for digest in [digest for digest, name in self._known.items() if name not in self._names]:
            del self._known[digest]

    # -- between processes -----------------------------------------------------------------------------------

    def take(self) -> list[tuple[str, str]]:
        """Return what was learned here since the last time, as rows for `hear`, and forget that it is news."""
        news, self._news = self._news, {}
        return [(digest.hex(), name) for digest, name in news.items()]

    def among(self, digests: Iterable[str]) -> list[tuple[str, str]]:
        """Return what is remembered of `digests`, as rows for `hear`."""
        found = [(digest, self._known.get(bytes.fromhex(digest))) for digest in digests]
        return [(digest, name) for digest, name in found if name is not None]

    def rows(self) -> list[tuple[str, str]]:
        """Return everything that is remembered, for `hear`; the latest used come last."""
        return [(digest.hex(), name) for digest, name in self._known.items()]

    def hear(self, rows: Iterable[Sequence[str]]) -> None:
        """Take over what another process has learned."""
        for digest, name in rows:
            if name in self._names:
                self._keep(bytes.fromhex(digest), name)

    # -- inside ----------------------------------------------------------------------------------------------

    def _keep(self, digest: bytes, name: str) -> None:
        known = self._known
        known[digest] = name
        known.move_to_end(digest)
        if len(known) > self._limit:
            known.popitem(last=False)

    def _tell(self, digest: bytes, name: str) -> None:
        if self.on_news is None:
            return
        news = self._news
        first = not news
        if len(news) >= _MOST_NEWS:
            del news[next(iter(news))]
        news[digest] = name
        if first:
            self.on_news()


def digest_of(id: str) -> bytes:
    """Return what stands for `id`, in every process alike."""
    return blake2b(id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
