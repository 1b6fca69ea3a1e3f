"""The KV cache's blocks: who holds them, what can be reused, what is evicted next.

A block is in exactly one of three places: *owned* (some sequence's table holds it, `refs` times in all), *cached*
(nobody holds it, but its content is known under a digest) or *free*. Allocation takes free blocks first and then
evicts the least recently used cached one.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

__all__ = ["BlockPool", "IntegrityError", "OutOfBlocksError"]

DIGEST_BYTES = 16


class OutOfBlocksError(Exception):
    """More blocks were asked for than are available; whoever asks must look at `available` first."""


class IntegrityError(Exception):
    """The books do not balance. A bug, never the caller's fault."""


class BlockPool:
    """Reference-counted blocks with a prefix cache.

    A full block's identity is a 128-bit BLAKE2b digest chained over everything before it: of the previous block's
    digest and its own token ids as little-endian int32. The chain starts at a keyed digest of the request's salt;
    the key is random per process, so that nobody outside can construct a collision. Whoever computes a block
    publishes it only once its KV is there; until then nobody else can find it.
    """

    def __init__(self, num_blocks: int, block_size: int, *, root: bytes, prefix_cache: bool = True) -> None:
        """Make a pool of free blocks. `root` keys the digests: 16 to 64 random bytes."""
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool needs blocks of at least one slot, got {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.refs = [0] * num_blocks
        """How many table entries hold each block. Read-only outside this class."""
        self._root = root
        self._pack = struct.Struct(f"<{block_size}i").pack
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._digest: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks with nothing of use in them."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and the prefix cache can still serve."""
        return len(self._cached)

    @property
    def num_owned(self) -> int:
        """Blocks that at least one table holds."""
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that can be allocated right now."""
        return len(self._free) + len(self._cached)

    def is_cached(self, block: int) -> bool:
        """Whether nobody holds `block` and it counts as available because it can be evicted."""
        return block in self._cached

    def is_published(self, block: int) -> bool:
        """Whether `block` can be found by its digest; such a block must never be written again."""
        return self._digest[block] is not None

    def digests(self, known: list[bytes], token_ids: Sequence[int], salt: str) -> list[bytes]:
        """Extend `known`, in place, to one digest for each full block of `token_ids`, and return it."""
        size = self.block_size
        full = len(token_ids) // size
        if len(known) < full:
            parent = known[-1] if known else self._start(salt)
            for first in range(len(known) * size, full * size, size):
                parent = hashlib.blake2b(
                    parent + self._pack(*token_ids[first : first + size]), digest_size=DIGEST_BYTES
                ).digest()
                known.append(parent)
        return known

    def match(self, digests: Sequence[bytes]) -> list[int]:
        """Return the blocks of the longest run of `digests`, from the first, that can be reused."""
        blocks = []
        for digest in digests:
            block = self._index.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def allocate(self) -> int:
        """Return a block with one reference and no content. Raises OutOfBlocksError."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise OutOfBlocksError(f"all {self.num_blocks} blocks are in use")
        self.refs[block] = 1
        return block

    def copy_on_write(self, blocks: list[int]) -> tuple[int, int]:
        """Put a block of its own in place of the table's last, shared one; return (source, destination)."""
        source = blocks[-1]
        blocks[-1] = self.allocate()
        self.refs[source] -= 1
        return source, blocks[-1]

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of `blocks`, which are owned or cached."""
        for block in blocks:
            if self.refs[block] == 0:
                del self._cached[block]
            self.refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Give up one reference to each of `blocks` and empty the list, so that doing it twice does nothing.

        The last block goes first and is therefore evicted first: a shorter prefix serves more requests.
        """
        while blocks:
            block = blocks.pop()
            refs = self.refs[block] - 1
            if refs < 0:
                raise IntegrityError(f"block {block} was released more often than it was taken")
            self.refs[block] = refs
            if refs == 0:
                if self._digest[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def publish(self, block: int, digest: bytes) -> None:
        """Let others find `block`, which is full and computed, under `digest`; the first to publish wins."""
        if self.prefix_cache and digest not in self._index and self._digest[block] is None:
            self._index[digest] = block
            self._digest[block] = digest

    def unpublish(self, blocks: Iterable[int]) -> None:
        """Let nobody find `blocks`, which are owned, any more; whoever holds them keeps them."""
        for block in blocks:
            self._forget(block)

    def clear_cache(self) -> None:
        """Forget every digest: cached blocks become free, owned ones cannot be found any more."""
        for block in range(self.num_blocks):
            self._forget(block)
        self._free.extend(self._cached)
        self._cached.clear()

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raise IntegrityError unless `tables`, every block table in use, account for every block exactly."""
        held: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"a table holds a block twice: {list(table)}")
            held.update(table)
        for block in range(self.num_blocks):
            if self.refs[block] != held[block]:
                raise IntegrityError(f"block {block} has {self.refs[block]} references and {held[block]} holders")
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free) or free & cached or (free | cached) & set(held):
            raise IntegrityError("a block is in two places")
        if len(free) + len(cached) + len(held) != self.num_blocks:
            raise IntegrityError(f"{len(free)} free + {len(cached)} cached + {len(held)} owned != {self.num_blocks}")
        for digest, block in self._index.items():
            if self._digest[block] != digest or block in free:
                raise IntegrityError(f"the prefix index points at block {block}, which is something else")
        published = sum(digest is not None for digest in self._digest)
        if published != len(self._index) or any(self._digest[block] is None for block in cached):
            raise IntegrityError(f"{published} blocks have digests and {len(self._index)} are in the index")

    def _start(self, salt: str) -> bytes:
        return hashlib.blake2b(b"salt:" + salt.encode(), key=self._root, digest_size=DIGEST_BYTES).digest()

    def _forget(self, block: int) -> None:
        digest = self._digest[block]
        if digest is not None:
            del self._index[digest]
            self._digest[block] = None
