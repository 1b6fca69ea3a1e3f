"""The fused operations equal the plain ones, interpreted on CPU tensors."""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("runs in a process of its own (test_triton_process.py)", allow_module_level=True)

from backend.models.config import Activation
from backend.models.ops import TorchOps
from backend.models.triton_ops import TritonOps

pytestmark = pytest.mark.triton

PLAIN, FUSED = TorchOps(), TritonOps()
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, atol=TOLERANCE[got.dtype], rtol=TOLERANCE[got.dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32], ids=["same", "wide"])
def test_norms(dtype: torch.dtype, weight_dtype: torch.dtype | None) -> None:
    x, residual = _random(3, 96, dtype=dtype), _random(3, 96, dtype=dtype, seed=1)
    weight = _random(96, dtype=weight_dtype or dtype, seed=2)
    _close(FUSED.norm(x, weight, 1e-6), PLAIN.norm(x, weight, 1e-6))
    got = FUSED.add_norm(x, residual, weight, 1e-6)
    for fused, plain in zip(got, PLAIN.add_norm(x.clone(), residual, weight, 1e-6), strict=True):
        _close(fused, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gates(dtype: torch.dtype, activation: Activation) -> None:
    gate_up = _random(3, 2 * 40, dtype=dtype)
    _close(FUSED.gate(gate_up, activation), PLAIN.gate(gate_up.clone(), activation))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
def test_rotations_of_a_slice_of_the_fused_projection(dtype: torch.dtype, normed: bool) -> None:
    qkv = _random(3, 3 + 1 + 1, 24, dtype=dtype)
    angles = torch.arange(3 * 12, dtype=torch.float32).view(3, 1, 12)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    norms = (_random(24, dtype=dtype, seed=1), _random(24, dtype=dtype, seed=2)) if normed else (None, None)
    wanted = PLAIN.rotate(qkv.clone()[:, :4], 3, cos, sin, *norms, 1e-6)
    untouched = qkv[:, 4:].clone()
    for fused, plain in zip(FUSED.rotate(qkv[:, :4], 3, cos, sin, *norms, 1e-6), wanted, strict=True):
        _close(fused, plain)
    assert torch.equal(qkv[:, 4:], untouched)
