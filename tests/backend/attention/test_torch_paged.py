"""The torch attention against a plain formula in float64, and what it must never write."""

from __future__ import annotations

import math
import os
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.attention.cache import KVCache, bytes_per_block
from backend.attention.chunks import padded_context, row_context
from backend.attention.torch_paged import TorchAttention
from backend.engine.step import StepInput
from backend.models.config import LayerConfig, ModelConfig
from backend.models.rope_config import RopeConfig


def tiny_config(
    *, heads: int = 6, kv_heads: int = 2, dim: int = 8, windows: tuple[int | None, ...] = (None,)
) -> ModelConfig:
    """A configuration of which only the attention matters, one layer per window."""
    return ModelConfig(
        family="test",
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        norm_eps=1e-6,
        max_position=4096,
        layers=tuple(LayerConfig(window=window) for window in windows),
        ropes=(RopeConfig(theta=1e4, dim=dim),),
        attention_scale=1 / math.sqrt(dim),
    )


def tiny_cache(config: ModelConfig, num_blocks: int, block_size: int) -> KVCache:
    device = torch.device("cpu")
    return KVCache(config, num_blocks=num_blocks, block_size=block_size, dtype=torch.float32, device=device)


def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int | None) -> torch.Tensor:
    """softmax(q k^T) v for the last queries of a sequence, head by head: [Q, H, D] over [N, Hkv, D]."""
    queries, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    out = torch.empty_like(q, dtype=torch.float64)
    for index in range(queries):
        position = tokens - queries + index
        first = 0 if window is None else max(0, position - window + 1)
        for head in range(heads):
            kv = head // (heads // kv_heads)
            scores = (k[first : position + 1, kv].double() @ q[index, head].double()) * scale
            out[index, head] = scores.softmax(0) @ v[first : position + 1, kv].double()
    return out


@dataclass
class World:
    """Sequences with all their keys and values, and the cache that should hold them."""

    config: ModelConfig
    cache: KVCache
    tables: list[list[int]]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def make(cls, config: ModelConfig, lengths: list[int], block_size: int, seed: int, *, shuffled: bool) -> World:
        counts = [-(-length // block_size) for length in lengths]
        blocks = list(range(sum(counts) + 3))
        if shuffled:
            random.Random(seed).shuffle(blocks)
        tables = [[blocks.pop(0) for _ in range(count)] for count in counts]
        maker = torch.Generator().manual_seed(seed)
        shape = (config.num_kv_heads, config.head_dim)
        keys = [torch.randn(length, *shape, generator=maker) for length in lengths]
        values = [torch.randn(length, *shape, generator=maker) for length in lengths]
        cache = tiny_cache(config, len(blocks) + sum(counts), block_size)
        return cls(config, cache, tables, keys, values)

    def step(self, query_lens: list[int]) -> StepInput:
        """The last `query_lens` tokens of every sequence."""
        size = self.cache.block_size
        positions = [
            position
            for keys, count in zip(self.keys, query_lens, strict=True)
            for position in range(len(keys) - count, len(keys))
        ]
        rows = [row for row, count in enumerate(query_lens) for _ in range(count)]
        slots = [
            self.tables[row][position // size] * size + position % size
            for row, position in zip(rows, positions, strict=True)
        ]
        lengths = [len(keys) for keys in self.keys]
        return StepInput([0] * len(slots), positions, slots, query_lens, lengths, self.tables, [])

    def fill(self, query_lens: list[int]) -> None:
        """Put everything before the queries into the cache, and NaN wherever nobody has written."""
        for stored, sources in ((self.cache.keys, self.keys), (self.cache.values, self.values)):
            for layer in stored:
                layer.fill_(torch.nan)
                flat = layer.view(layer.shape[0], -1, layer.shape[-1])
                for table, tokens, count in zip(self.tables, sources, query_lens, strict=True):
                    for position in range(len(tokens) - count):
                        size = self.cache.block_size
                        flat[:, table[position // size] * size + position % size] = tokens[position]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=7),
    block_size=st.sampled_from([1, 3, 8, 16]),
    window=st.sampled_from([None, 1, 5, 16, 40]),
    group=st.sampled_from([1, 3]),
    shuffled=st.booleans(),
    seed=st.integers(0, 99),
)
def test_attention_equals_the_formula(
    rows: list[tuple[int, int]], block_size: int, window: int | None, group: int, shuffled: bool, seed: int
) -> None:
    torch.set_num_threads(1)
    config = tiny_config(heads=2 * group, windows=(None, window))
    lengths = [length for length, _ in rows]
    # Half of the rows decode, as in a real step.
    query_lens = [1 if count % 2 else min(count, length) for length, count in rows]
    world = World.make(config, lengths, block_size, seed, shuffled=shuffled)
    world.fill(query_lens)
    q = torch.randn(sum(query_lens), config.num_heads, config.head_dim, generator=torch.Generator().manual_seed(seed))
    k = torch.cat([keys[len(keys) - count :] for keys, count in zip(world.keys, query_lens, strict=True)])
    v = torch.cat([values[len(values) - count :] for values, count in zip(world.values, query_lens, strict=True)])
    attend = TorchAttention(config, world.cache).begin(world.step(query_lens))
    for layer, reach in enumerate((None, window)):
        got = attend(layer, q, k, v).view_as(q).double()
        parts = q.split(query_lens)
        want = torch.cat(
            [
                formula(part, keys, values, config.attention_scale, reach)
                for part, keys, values in zip(parts, world.keys, world.values, strict=True)
            ]
        )
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_slot_minus_one_is_never_written() -> None:
    config = tiny_config()
    world = World.make(config, [9, 5], 4, seed=1, shuffled=False)
    step = world.step([3, 1])
    slots = list(step.slot_mapping)
    slots[1] = slots[3] = -1
    attend = TorchAttention(config, world.cache).begin(step._replace(slot_mapping=slots))
    world.cache.keys[0].fill_(7.0)
    k = torch.ones(4, config.num_kv_heads, config.head_dim)
    attend(0, torch.zeros(4, config.num_heads, config.head_dim), k, k)
    written = (world.cache.keys[0] != 7.0).any(-1).any(0).flatten().nonzero().flatten().tolist()
    assert written == sorted(slot for slot in slots if slot >= 0)
    assert world.cache.num_blocks * world.cache.block_size - 1 not in written


def test_copied_blocks_are_equal_in_every_layer_and_all_sources_are_read_first() -> None:
    config = tiny_config(windows=(None, 4))
    cache = tiny_cache(config, 6, 4)
    for layer in (*cache.keys, *cache.values):
        layer.copy_(torch.randn(layer.shape))
    before = [layer.clone() for layer in (*cache.keys, *cache.values)]
    cache.copy_blocks([(0, 1), (1, 5), (3, 2)])
    for was, now in zip(before, (*cache.keys, *cache.values), strict=True):
        for source, destination in ((0, 1), (1, 5), (3, 2)):
            assert torch.equal(now[:, destination], was[:, source])
        for untouched in (0, 3, 4):
            assert torch.equal(now[:, untouched], was[:, untouched])
    cache.copy_blocks([])


def test_saved_blocks_come_back_anywhere_and_in_part() -> None:
    config = tiny_config(windows=(None, 4))
    cache = tiny_cache(config, 8, 4)
    for layer in (*cache.keys, *cache.values):
        layer.copy_(torch.randn(layer.shape))
    before = [layer.clone() for layer in (*cache.keys, *cache.values)]
    saved = cache.save_blocks([6, 1, 3])
    for layer in (*cache.keys, *cache.values):
        layer.zero_()
    cache.load_blocks(saved, 1, [0, 7])
    for was, now in zip(before, (*cache.keys, *cache.values), strict=True):
        assert torch.equal(now[:, 0], was[:, 1])
        assert torch.equal(now[:, 7], was[:, 3])
        assert not now[:, 1:7].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_per_block_is_what_a_block_takes(dtype: torch.dtype) -> None:
    config = tiny_config(windows=(None, None, 4))
    cache = KVCache(config, num_blocks=5, block_size=4, dtype=dtype, device=torch.device("cpu"))
    taken = sum(layer.numel() * layer.itemsize for layer in (*cache.keys, *cache.values))
    assert taken == 5 * bytes_per_block(config, 4, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sees_nothing_of_slots_that_nobody_has_written(dtype: torch.dtype) -> None:
    """vllm PR#2231, transformers#37574, openvino PR#37377: NaN + -inf and 0 * NaN are NaN."""
    config = tiny_config(windows=(None, 5))
    lengths, query_lens = [50, 17, 33, 7, 20], [1, 1, 6, 1, 20]
    world = World.make(config, lengths, 8, seed=4, shuffled=True)
    world.keys, world.values = ([one.to(dtype) for one in side] for side in (world.keys, world.values))
    world.cache = KVCache(
        config, num_blocks=world.cache.num_blocks, block_size=8, dtype=dtype, device=torch.device("cpu")
    )
    world.fill(query_lens)
    q = torch.randn(sum(query_lens), 6, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    k, v = (
        torch.cat([one[len(one) - count :] for one, count in zip(side, query_lens, strict=True)])
        for side in (world.keys, world.values)
    )
    attend = TorchAttention(config, world.cache).begin(world.step(query_lens))
    for layer, window in enumerate((None, 5)):
        want = torch.cat(
            [
                formula(part, keys, values, config.attention_scale, window)
                for part, keys, values in zip(q.split(query_lens), world.keys, world.values, strict=True)
            ]
        )
        torch.testing.assert_close(attend(layer, q, k, v).view_as(q).double(), want, atol=2**-6, rtol=2**-6)


def test_neighbouring_blocks_are_read_in_place() -> None:
    cache = torch.randn(2, 10, 4, 8)
    run = row_context([3, 4, 5], 0, 12).read(cache)
    assert run.data_ptr() == cache[:, 3].data_ptr()
    scattered = row_context([3, 5, 4], 0, 12).read(cache)
    assert scattered.shape == run.shape == (1, 2, 12, 8)
    assert torch.equal(scattered[0, :, 4:8], cache[:, 5])


def test_only_what_a_row_sees_is_read_and_the_cache_stays_as_it_is() -> None:
    cache = torch.full((2, 10, 4, 8), torch.nan)
    cache[:, 3], cache[:, 5, :2], cache[:, 7, 1:3] = 3.0, 5.0, 7.0
    before = cache.clone()
    for table in ([3, 5], [5, 3]):
        first, stop = (0, 6) if table == [3, 5] else (4, 8)
        read = row_context(table, first, stop).read(cache)
        assert read.shape == (1, 2, stop - first, 8)
        assert read.isfinite().all()
    seen = torch.tensor([[True] * 6 + [False] * 2, [False] + [True] * 2 + [False] * 5])
    read = padded_context([[3, 5], [7]], seen).read(cache)
    assert read.shape == (2, 2, 8, 8)
    assert read[0, 0, :, 0].tolist() == [3, 3, 3, 3, 5, 5, 0, 0]
    assert read[1, 1, :, 0].tolist() == [0, 7, 7, 0, 0, 0, 0, 0]
    assert torch.equal(before.isnan(), cache.isnan())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says what is resident")
def test_a_cache_that_is_reserved_has_its_memory_at_once_and_another_as_it_is_used() -> None:
    config = tiny_config(heads=2, dim=64, windows=(None,))

    def grown(*, reserve: bool) -> int:
        before = _resident_bytes()
        cache = KVCache(
            config,
            num_blocks=8192,
            block_size=16,
            dtype=torch.float32,
            device=torch.device("cpu"),
            reserve=reserve,
        )
        assert not cache.keys[0][0, 0].any()
        return _resident_bytes() - before

    size = bytes_per_block(config, 16, torch.float32) * 8192
    assert grown(reserve=False) < size / 2 < grown(reserve=True)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
