from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend.engine.blocks import BlockPool, IntegrityError, OutOfBlocksError

ROOT = b"0123456789abcdef"


def pool(num_blocks: int = 8, block_size: int = 4, **options: object) -> BlockPool:
    return BlockPool(num_blocks, block_size, root=ROOT, **options)  # type: ignore[arg-type]


def allocate(blocks: BlockPool, count: int) -> list[int]:
    return [blocks.allocate() for _ in range(count)]


def fill(blocks: BlockPool, tokens: list[int], salt: str = "") -> list[int]:
    """Allocate, "compute" and publish the full blocks of `tokens`; return the table."""
    table = allocate(blocks, -(-len(tokens) // blocks.block_size))
    for block, digest in zip(table, blocks.digests([], tokens, salt), strict=False):
        blocks.publish(block, digest)
    return table


def test_blocks_are_handed_out_in_ascending_runs() -> None:
    assert allocate(pool(), 4) == [0, 1, 2, 3]


def test_allocating_from_an_exhausted_pool_is_refused() -> None:
    blocks = pool(2)
    allocate(blocks, 2)
    with pytest.raises(OutOfBlocksError):
        blocks.allocate()


def test_releasing_twice_does_nothing_the_second_time() -> None:
    blocks = pool()
    table = allocate(blocks, 3)
    blocks.release(table)
    blocks.release(table)
    assert blocks.available == blocks.num_blocks
    blocks.check_integrity([])


def test_references_never_go_below_zero() -> None:
    """sglang-jax PR#982, a port of sglang#12224: the last decode slot was freed twice."""
    blocks = pool()
    table = allocate(blocks, 1)
    stale = list(table)
    blocks.release(table)
    with pytest.raises(IntegrityError, match="more often"):
        blocks.release(stale)


def test_a_shared_block_stays_until_its_last_holder_lets_go() -> None:
    blocks = pool()
    table = allocate(blocks, 2)
    other = list(table)
    blocks.share(other)
    blocks.release(table)
    assert blocks.num_owned == 2
    blocks.check_integrity([other])
    blocks.release(other)
    assert blocks.num_owned == 0


def test_copy_on_write_gives_the_writer_a_block_of_its_own() -> None:
    blocks = pool()
    first = allocate(blocks, 2)
    second = list(first)
    blocks.share(second)
    source, destination = blocks.copy_on_write(second)
    assert (source, second[-1]) == (first[-1], destination)
    assert destination not in first
    blocks.check_integrity([first, second])


def test_a_released_prefix_can_be_found_and_revived() -> None:
    blocks = pool()
    tokens = list(range(10))
    table = fill(blocks, tokens)
    kept = list(table)
    blocks.release(table)
    assert blocks.num_cached == 2
    hit = blocks.match(blocks.digests([], tokens, ""))
    assert hit == kept[:2]
    blocks.share(hit)
    assert (blocks.num_cached, blocks.num_owned) == (0, 2)


def test_a_block_that_was_allocated_but_not_published_cannot_be_found() -> None:
    """sglang#38319, nano-vllm#209: blocks were found before their KV was computed."""
    blocks = pool()
    tokens = list(range(8))
    allocate(blocks, 2)
    assert blocks.match(blocks.digests([], tokens, "")) == []


def test_of_two_equal_blocks_the_first_published_is_found_and_the_other_becomes_free() -> None:
    blocks = pool()
    tokens = list(range(4))
    first, second = fill(blocks, tokens), fill(blocks, tokens)
    assert blocks.match(blocks.digests([], tokens, "")) == first
    blocks.release(second)
    blocks.release(first)
    assert (blocks.num_cached, blocks.num_free) == (1, 7)
    blocks.check_integrity([])


def test_eviction_takes_the_least_recently_used_and_of_a_sequence_the_tail_first() -> None:
    blocks = pool(4, 2)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8]
    for tokens in (old, new):
        blocks.release(fill(blocks, tokens))
    assert blocks.num_cached == 4
    blocks.allocate()
    assert len(blocks.match(blocks.digests([], old, ""))) == 1, "the tail went, the head stayed"
    blocks.allocate()
    assert len(blocks.match(blocks.digests([], old, ""))) == 0
    assert len(blocks.match(blocks.digests([], new, ""))) == 2


def test_free_blocks_are_used_before_anything_is_evicted() -> None:
    blocks = pool(4, 2)
    blocks.release(fill(blocks, [1, 2]))
    allocate(blocks, 3)
    assert blocks.num_cached == 1


def test_an_evicted_block_is_no_longer_found() -> None:
    blocks = pool(1, 2)
    blocks.release(fill(blocks, [1, 2]))
    blocks.allocate()
    assert blocks.match(blocks.digests([], [1, 2], "")) == []


def test_salts_keep_tenants_apart() -> None:
    blocks = pool()
    tokens = list(range(8))
    fill(blocks, tokens, "tenant a")
    assert blocks.match(blocks.digests([], tokens, "tenant b")) == []
    assert blocks.match(blocks.digests([], tokens, "")) == []
    assert len(blocks.match(blocks.digests([], tokens, "tenant a"))) == 2


def test_a_salt_cannot_imitate_tokens_or_another_salt() -> None:
    blocks = pool(8, 1)
    starts = {blocks.digests([], [7], salt)[0] for salt in ("", "salt:", "a", "a\0", "\0a")}
    assert len(starts) == 5


def test_digests_differ_for_tokens_that_agree_in_their_low_byte() -> None:
    """waybarrios/vllm-mlx PR#444: tokens were cut to 8 bits before hashing."""
    blocks = pool()
    a, b = blocks.digests([], [65] * 4, ""), blocks.digests([], [321] * 4, "")
    assert a != b


def test_digests_depend_on_everything_before_them() -> None:
    blocks = pool()
    a = blocks.digests([], [1, 2, 3, 4, 9, 9, 9, 9], "")
    b = blocks.digests([], [4, 3, 2, 1, 9, 9, 9, 9], "")
    assert a[1] != b[1]


def test_digests_are_128_bit_and_differ_between_processes() -> None:
    """vllm PR#12621 and PR#15297 (GHSA-rm76-4mrf-v9r8), openvino.genai#3722: predictable or 64-bit hashes."""
    tokens = [1, 2, 3, 4]
    here = BlockPool(1, 4, root=b"a" * 16).digests([], tokens, "")
    there = BlockPool(1, 4, root=b"b" * 16).digests([], tokens, "")
    assert len(here[0]) == 16
    assert here != there


def test_digests_are_extended_and_not_computed_again() -> None:
    blocks = pool()
    known = blocks.digests([], list(range(4)), "")
    again = blocks.digests(known, list(range(9)), "")
    assert again is known
    assert known == blocks.digests([], list(range(8)), "")


def test_without_a_prefix_cache_nothing_is_ever_found() -> None:
    blocks = pool(prefix_cache=False)
    tokens = list(range(8))
    fill(blocks, tokens)
    assert blocks.match(blocks.digests([], tokens, "")) == []


def test_clearing_the_cache_forgets_owned_and_unowned_blocks() -> None:
    blocks = pool()
    held = fill(blocks, list(range(8)))
    blocks.release(fill(blocks, list(range(50, 58))))
    blocks.clear_cache()
    assert (blocks.num_cached, blocks.num_owned) == (0, 2)
    blocks.check_integrity([held])
    blocks.release(held)
    assert blocks.num_free == 8


def test_the_integrity_check_notices_a_leak_and_a_double_hold() -> None:
    blocks = pool()
    table = allocate(blocks, 2)
    with pytest.raises(IntegrityError, match="references"):
        blocks.check_integrity([])
    with pytest.raises(IntegrityError, match="twice"):
        blocks.check_integrity([[table[0], table[0]]])


@given(st.lists(st.integers(0, 2**31 - 1), max_size=40), st.lists(st.integers(0, 2**31 - 1), max_size=40))
@settings(max_examples=100, deadline=None)
def test_digests_agree_exactly_as_far_as_the_tokens_do(a: list[int], b: list[int]) -> None:
    blocks = pool(1, 3)
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    left, right = blocks.digests([], a, ""), blocks.digests([], b, "")
    agreeing = sum(x == y for x, y in zip(left, right, strict=False))
    assert agreeing == same // 3


class Tables(RuleBasedStateMachine):
    """Any order of takes, shares, writes, publications and releases keeps the books balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool(7, 2)
        self.tables: list[list[int]] = []
        self.content: list[list[int]] = []

    @precondition(lambda self: self.pool.available > 0)
    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=8))
    def admit(self, tokens: list[int]) -> None:
        digests = self.pool.digests([], tokens, "")
        hits = self.pool.match(digests)
        fresh = -(-len(tokens) // 2) - len(hits)
        if fresh > self.pool.available - sum(self.pool.is_cached(block) for block in hits):
            return
        self.pool.share(hits)
        self.tables.append(hits + allocate(self.pool, fresh))
        self.content.append(tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.tables) - 1))
        digests = self.pool.digests([], self.content[which], "")
        for block, digest in zip(self.tables[which], digests, strict=False):
            self.pool.publish(block, digest)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def fork_and_write(self, data: st.DataObject) -> None:
        which = data.draw(st.integers(0, len(self.tables) - 1))
        if len(self.content[which]) % 2 == 0 or self.pool.available == 0:
            return
        child = list(self.tables[which])
        self.pool.share(child)
        self.pool.copy_on_write(child)
        self.tables.append(child)
        self.content.append(self.content[which])

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), twice=st.booleans())
    def release(self, data: st.DataObject, twice: bool) -> None:
        which = data.draw(st.integers(0, len(self.tables) - 1))
        table = self.tables.pop(which)
        self.content.pop(which)
        self.pool.release(table)
        if twice:
            self.pool.release(table)

    @rule()
    def clear(self) -> None:
        self.pool.clear_cache()

    @invariant()
    def balanced(self) -> None:
        self.pool.check_integrity(self.tables)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_owned == self.pool.num_blocks


TestTables = Tables.TestCase
TestTables.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
