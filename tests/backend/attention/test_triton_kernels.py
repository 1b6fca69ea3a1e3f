"""The Triton kernels on CPU tensors, interpreted: tiny shapes, because each program costs milliseconds."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own (test_triton_process.py)", allow_module_level=True)

from backend.attention import triton_launch as launch
from backend.attention.cache import KVCache
from backend.attention.triton_paged import DecodeLayout, TritonAttention
from tests.backend.attention.test_torch_paged import World, formula, tiny_config

pytestmark = pytest.mark.triton

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def _world(
    dtype: torch.dtype,
    lengths: list[int],
    query_lens: list[int],
    *,
    group: int,
    dim: int,
    window: int | None,
    block: int,
) -> tuple[World, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A filled cache with the step's q, k and v."""
    torch.set_num_threads(1)
    config = tiny_config(heads=2 * group, dim=dim, windows=(window,))
    world = World.make(config, lengths, block, seed=5, shuffled=True)
    num_blocks = world.cache.num_blocks
    world.cache = KVCache(config, num_blocks=num_blocks, block_size=block, dtype=dtype, device=torch.device("cpu"))
    world.keys = [keys.to(dtype) for keys in world.keys]
    world.values = [values.to(dtype) for values in world.values]
    world.fill(query_lens)
    q = torch.randn(sum(query_lens), config.num_heads, dim, generator=torch.Generator().manual_seed(3)).to(dtype)
    k = torch.cat([keys[len(keys) - count :] for keys, count in zip(world.keys, query_lens, strict=True)])
    v = torch.cat([values[len(values) - count :] for values, count in zip(world.values, query_lens, strict=True)])
    return world, q, k, v


def _wanted(world: World, q: torch.Tensor, query_lens: list[int], window: int | None) -> torch.Tensor:
    parts = [
        formula(part, keys, values, world.config.attention_scale, window)
        for part, keys, values in zip(torch.split(q, query_lens), world.keys, world.values, strict=True)
    ]
    return torch.cat(parts)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("lengths", "query_lens", "group", "dim", "window", "block"),
    [
        ([1, 16, 17, 40], [1, 1, 1, 1], 3, 16, None, 16),  # decodes at the edges of blocks
        ([33, 18, 7], [1, 4, 7], 1, 8, 5, 8),  # everything in one step, with a window
        ([20, 5, 33], [20, 1, 9], 4, 16, None, 8),  # first chunk, decode, later chunk
        ([37, 21], [21, 1], 3, 16, 13, 4),  # a window that begins inside a block
        ([9], [9], 8, 32, None, 1),  # blocks of one slot
    ],
)
def test_kernels_equal_the_formula(
    dtype: torch.dtype,
    lengths: list[int],
    query_lens: list[int],
    group: int,
    dim: int,
    window: int | None,
    block: int,
) -> None:
    """Half precision is widened under the interpreter, which multiplies bit patterns (triton#11584)."""
    world, q, k, v = _world(dtype, lengths, query_lens, group=group, dim=dim, window=window, block=block)
    got = TritonAttention(world.config, world.cache).begin(world.step(query_lens))(0, q, k, v)
    want = _wanted(world, q, query_lens, window)
    torch.testing.assert_close(got.view_as(q).double(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_the_number_of_splits_does_not_change_the_result(splits: int) -> None:
    world, q, k, v = _world(torch.float32, [40, 3], [1, 1], group=2, dim=16, window=None, block=8)
    TritonAttention(world.config, world.cache).begin(world.step([1, 1]))(0, q, k, v)
    out = torch.empty_like(q)
    tables = torch.tensor([[*table, *[0] * (5 - len(table))] for table in world.tables], dtype=torch.int32)
    launch.decode(
        q,
        world.cache.keys[0],
        world.cache.values[0],
        out,
        tables,
        torch.tensor([40, 3], dtype=torch.int32),
        torch.tensor([0, 1], dtype=torch.int32),
        scale=world.config.attention_scale,
        splits=splits,
        tile=16,
    )
    torch.testing.assert_close(out.double(), _wanted(world, q, [1, 1], None), atol=1e-5, rtol=1e-5)


def test_padding_rows_of_a_static_decode_read_and_write_nothing() -> None:
    """vllm#43810, vllm PR#13922: slot -1 wrote the last slot; padding made keys longer than the slots."""
    world, q, k, v = _world(torch.float32, [19, 9], [1, 1], group=3, dim=16, window=None, block=8)
    attention = TritonAttention(world.config, world.cache)
    step = world.step([1, 1])
    tables = torch.full((4, 5), 2**30, dtype=torch.int32)  # reading a padding row's table would crash
    for row, table in enumerate(world.tables):
        tables[row, : len(table)] = torch.tensor(table, dtype=torch.int32)
    layout = DecodeLayout(
        tables=tables,
        lengths=torch.tensor([19, 9, 0, 0], dtype=torch.int32),
        tokens=torch.arange(4, dtype=torch.int32),
        splits=2,
    )
    slots = torch.tensor([*step.slot_mapping, -1, -1])
    before = world.cache.keys[0].nan_to_num(7.0)
    padded = [torch.cat([tensor, torch.ones_like(tensor)]) for tensor in (q, k, v)]
    got = attention.begin_static(slots, layout)(0, *padded).view(4, world.config.num_heads, -1)
    torch.testing.assert_close(got[:2].double(), _wanted(world, q, [1, 1], None), atol=1e-5, rtol=1e-5)
    assert torch.equal(got[2:], torch.zeros_like(got[2:]))
    after = world.cache.keys[0].nan_to_num(7.0)
    changed = (after != before).any(-1).any(0).flatten().nonzero().flatten().tolist()
    assert changed == sorted(step.slot_mapping)


def test_strided_keys_and_queries_are_understood() -> None:
    """xllm PR#932: a slice of a persistent buffer is not contiguous."""
    world, q, k, v = _world(torch.float32, [12], [5], group=3, dim=16, window=None, block=8)
    heads, kv_heads = world.config.num_heads, world.config.num_kv_heads
    qkv = torch.cat([q, k, v], dim=1)  # as the fused projection leaves them
    parts = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
    got = TritonAttention(world.config, world.cache).begin(world.step([5]))(0, *parts)
    torch.testing.assert_close(got.view_as(q).double(), _wanted(world, q, [5], None), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "kv_heads", "splits"), [(1, 8, 32), (8, 8, 8), (32, 8, 2), (128, 8, 1), (1, 1, 32)])
def test_splits_fill_the_gpu_and_depend_on_the_batch_alone(rows: int, kv_heads: int, splits: int) -> None:
    assert launch.splits_for(rows, kv_heads, processors=132) == splits
