"""The native kernels against the same formulas in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import gelu, rms_norm, silu

from backend.models.rope import rotate
from backend.native.kernels import Kernels, _even_cuts, load_kernels

DTYPES = pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-6), (torch.bfloat16, 2**-8)])


@pytest.fixture(params=[1, 3], ids=["1-thread", "3-threads"])
def ops(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no C compiler")
    torch.set_num_threads(request.param)
    yield kernels
    torch.set_num_threads(1)


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _check(got: torch.Tensor, want: torch.Tensor, close: float) -> None:
    torch.testing.assert_close(got.double(), want, atol=close, rtol=close)


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 576), (130, 70)])
def test_norm_equals_the_formula(ops: Kernels, dtype: torch.dtype, close: float, rows: int, width: int) -> None:
    x, weight = _random(rows, width, dtype=dtype), _random(width, dtype=dtype, seed=1)
    _check(ops.norm(x, weight, 1e-5), rms_norm(x.double(), (width,), weight.double(), 1e-5), close)


def test_a_norm_with_a_float32_weight_keeps_its_low_bits(ops: Kernels) -> None:
    x, weight = _random(5, 64, dtype=torch.bfloat16), 1 + _random(64, dtype=torch.float32) / 1024
    got = ops.norm(x, weight, 1e-5)
    assert got.dtype is torch.bfloat16
    _check(got, rms_norm(x.double(), (64,), weight.double(), 1e-5), 2**-8)


@DTYPES
def test_the_residual_is_added_before_the_norm(ops: Kernels, dtype: torch.dtype, close: float) -> None:
    x, residual = _random(70, 96, dtype=dtype), _random(70, 96, dtype=dtype, seed=1)
    weight = _random(96, dtype=dtype, seed=2)
    total = x + residual
    normed, kept = ops.add_norm(x.clone(), residual, weight, 1e-6)
    assert torch.equal(kept, total)
    _check(normed, rms_norm(total.double(), (96,), weight.double(), 1e-6), close)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_equals_the_formula(ops: Kernels, dtype: torch.dtype, close: float, activation: str) -> None:
    gate_up = _random(70, 2 * 100, dtype=dtype) * 8
    gate, up = gate_up.double().chunk(2, dim=-1)
    want = (silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")) * up
    _check(ops.gate(gate_up, "silu" if activation == "silu" else "gelu_tanh"), want, 4 * close)


def test_gates_far_from_zero_are_zero_or_the_value_itself(ops: Kernels) -> None:
    ends = torch.tensor([[-1e4, -200.0, 200.0, 1e4, 1.0, 1.0, 1.0, 1.0]])
    assert ops.gate(ends, "silu").tolist()[0] == pytest.approx([0.0, 0.0, 200.0, 1e4], abs=1e-30)


def test_a_nan_stays_one(ops: Kernels) -> None:
    x = torch.full((2, 64), torch.nan)
    assert ops.norm(x, torch.ones(64), 1e-5).isnan().all()
    assert ops.gate(x, "silu").isnan().all()
    assert ops.gate(x.bfloat16(), "silu").isnan().all()


@DTYPES
@pytest.mark.parametrize("normed", [False, True])
def test_rotation_equals_the_formula_and_leaves_values_alone(
    ops: Kernels, dtype: torch.dtype, close: float, normed: bool
) -> None:
    heads, kv_heads, dim, rows = 4, 2, 24, 70
    qkv = _random(rows, heads + 2 * kv_heads, dim, dtype=dtype)
    angles = _random(rows, 1, dim // 2, dtype=torch.float32, seed=1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = [_random(dim, dtype=dtype, seed=seed) for seed in (2, 3)] if normed else [None, None]
    wants = []
    for part, norm in zip((qkv[:, :heads], qkv[:, heads : heads + kv_heads]), norms, strict=True):
        states = part.double()
        if norm is not None:
            # The norm's own result is in the type of its input.
            states = rms_norm(states, (dim,), norm.double(), 1e-6).to(dtype).double()
        wants.append(rotate(states, cos.double(), sin.double()))
    values = qkv[:, heads + kv_heads :].clone()
    q, k = ops.rotate(qkv[:, : heads + kv_heads], heads, cos, sin, *norms, 1e-6)
    _check(q, wants[0], 4 * close)
    _check(k, wants[1], 4 * close)
    assert torch.equal(qkv[:, heads + kv_heads :], values)


def test_rows_are_shared_out_by_length_and_none_is_lost() -> None:
    for lengths in ([5], [1, 1], [100, 1, 1, 1], [1, 1, 1, 100], [7] * 10, list(range(1, 30))):
        for parts in (1, 2, 3):
            cuts = _even_cuts(lengths, parts)
            assert len(cuts) == parts + 1
            assert cuts == sorted(cuts)
            assert (cuts[0], cuts[-1]) == (0, len(lengths))
            shares = [sum(lengths[first:last]) for first, last in itertools.pairwise(cuts)]
            assert max(shares) <= sum(lengths) / parts + max(lengths)


@pytest.mark.parametrize(
    ("dim", "taken"), [(32, True), (64, True), (96, True), (256, True), (80, False), (288, False)]
)
def test_it_says_which_heads_it_attends(dim: int, taken: bool) -> None:
    assert Kernels.attends(dim) is taken
