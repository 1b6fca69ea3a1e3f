"""The native attention against a plain formula in float64, and what it must never write."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.attention.cache import KVCache
from backend.attention.native_paged import NativeAttention
from backend.engine.step import StepInput
from backend.native.kernels import Kernels, load_kernels
from tests.backend.attention.test_torch_paged import World, formula, tiny_config


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels()
    if found is None:
        pytest.skip("no C compiler")
    return found


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=7),
    block_size=st.sampled_from([1, 3, 8, 16, 32]),
    window=st.sampled_from([None, 1, 5, 16, 40]),
    group=st.sampled_from([1, 2, 3, 4, 7]),
    dim=st.sampled_from([32, 64, 96, 128]),
    threads=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_attention_equals_the_formula(
    kernels: Kernels,
    rows: list[tuple[int, int]],
    block_size: int,
    window: int | None,
    group: int,
    dim: int,
    threads: int,
    seed: int,
) -> None:
    torch.set_num_threads(threads)
    config = tiny_config(heads=2 * group, dim=dim, windows=(None, window))
    lengths = [length for length, _ in rows]
    query_lens = [1 if count % 2 else min(count, length) for length, count in rows]
    world = World.make(config, lengths, block_size, seed, shuffled=True)
    world.fill(query_lens)
    q = torch.randn(sum(query_lens), config.num_heads, dim, generator=torch.Generator().manual_seed(seed))
    k = torch.cat([keys[len(keys) - count :] for keys, count in zip(world.keys, query_lens, strict=True)])
    v = torch.cat([values[len(values) - count :] for values, count in zip(world.values, query_lens, strict=True)])
    attend = NativeAttention(config, world.cache, kernels).begin(world.step(query_lens))
    try:
        for layer, reach in enumerate((None, window)):
            got = attend(layer, q, k, v).view_as(q).double()
            parts = q.split(query_lens)
            want = torch.cat(
                [
                    formula(part, keys, values, config.attention_scale, reach)
                    for part, keys, values in zip(parts, world.keys, world.values, strict=True)
                ]
            )
            torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)
    finally:
        torch.set_num_threads(1)


def test_bfloat16_attends_its_own_values_to_within_their_rounding(kernels: Kernels) -> None:
    config = tiny_config(heads=6, dim=64)
    world = World.make(config, [50, 17, 33], 16, seed=4, shuffled=True)
    world.keys = [keys.bfloat16().float() for keys in world.keys]
    world.values = [values.bfloat16().float() for values in world.values]
    world.fill([1, 1, 1])
    cache = KVCache(
        config, num_blocks=world.cache.num_blocks, block_size=16, dtype=torch.bfloat16, device=torch.device("cpu")
    )
    cache.keys[0].copy_(world.cache.keys[0])
    cache.values[0].copy_(world.cache.values[0])
    q = torch.randn(3, 6, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    k = torch.stack([keys[-1] for keys in world.keys]).bfloat16()
    v = torch.stack([values[-1] for values in world.values]).bfloat16()
    got = NativeAttention(config, cache, kernels).begin(world.step([1, 1, 1]))(0, q, k, v).view_as(q)
    want = torch.cat(
        [
            formula(q[row : row + 1].float(), world.keys[row], world.values[row], config.attention_scale, None)
            for row in range(3)
        ]
    )
    torch.testing.assert_close(got.double(), want, atol=2**-8, rtol=2**-8)


def test_slot_minus_one_is_never_written(kernels: Kernels) -> None:
    """vllm#43810: as an index, -1 is the last slot of the cache."""
    config = tiny_config(dim=32)
    world = World.make(config, [9, 5], 4, seed=1, shuffled=False)
    step = world.step([3, 1])
    slots = list(step.slot_mapping)
    slots[1] = slots[3] = -1
    attend = NativeAttention(config, world.cache, kernels).begin(step._replace(slot_mapping=slots))
    world.cache.keys[0].fill_(7.0)
    k = torch.ones(4, config.num_kv_heads, config.head_dim)
    attend(0, torch.zeros(4, config.num_heads, config.head_dim), k, k)
    written = (world.cache.keys[0] != 7.0).any(-1).any(0).flatten().nonzero().flatten().tolist()
    assert written == sorted(slot for slot in slots if slot >= 0)


def test_a_row_has_the_same_bits_in_any_company(kernels: Kernels) -> None:
    """scouzi1966/maclocal-api#140: rows that end early must not touch those that go on."""
    config = tiny_config(heads=6, dim=64)
    world = World.make(config, [40, 3, 25, 70], 8, seed=2, shuffled=True)
    world.fill([1, 1, 1, 1])
    step = world.step([1, 1, 1, 1])
    q = torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(3))
    k, v = (torch.stack([rows[-1] for rows in side]) for side in (world.keys, world.values))
    attention = NativeAttention(config, world.cache, kernels)
    together = attention.begin(step)(0, q, k, v)
    for row in range(4):
        one = slice(row, row + 1)
        alone = StepInput(*(field[one] for field in step[:6]), [])
        assert torch.equal(attention.begin(alone)(0, q[one], k[one], v[one])[0], together[row])
