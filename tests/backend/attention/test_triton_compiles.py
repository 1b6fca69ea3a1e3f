"""The kernels compile for real GPUs, which needs none: the interpreter accepts programs that a GPU would not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted functions cannot be compiled", allow_module_level=True)
triton = pytest.importorskip("triton")

from backend.attention import triton_kernels as kernels  # noqa: E402
from backend.models import triton_ops as ops  # noqa: E402

pytestmark = [pytest.mark.triton, pytest.mark.slow]

BF16, F32, I32, I64 = "*bf16", "*fp32", "*i32", "*i64"
DECODE_ARGUMENTS = [*[BF16] * 4, F32, F32, F32, I32, I32, I32, "i32", "i32", "i64", "i32", "fp32"]
PREFILL_ARGUMENTS = [*[BF16] * 4, *[I32] * 6, "i32", "i32", "i64", "i32", "fp32"]
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes a block may use, by compute capability."""


def _decode(dim: int, group: int, window: int, splits: int) -> tuple[Any, list[str], dict[str, Any], int, int]:
    constants = {
        "GROUP": group,
        "GROUP_ROWS": 16,
        "DIM": dim,
        "BLOCK_DIM": dim,
        "BLOCK": 16,
        "TILE": 64 if dim <= 128 else 32,
        "SPLITS": splits,
        "WINDOW": window,
        "UPCAST": False,
    }
    return kernels.decode_kernel, DECODE_ARGUMENTS, constants, 4, 3 if dim <= 128 else 2


def _prefill(dim: int, group: int, window: int) -> tuple[Any, list[str], dict[str, Any], int, int]:
    rows = 128 if dim <= 128 else 64
    constants = {
        "GROUP": group,
        "ROWS": rows,
        "DIM": dim,
        "BLOCK_DIM": dim,
        "BLOCK": 16,
        "TILE": 64 if dim <= 128 else 32,
        "WINDOW": window,
        "UPCAST": False,
    }
    return kernels.prefill_kernel, PREFILL_ARGUMENTS, constants, 8 if rows == 128 else 4, 3 if dim <= 128 else 2


CASES: dict[str, tuple[Any, list[str], dict[str, Any], int, int]] = {
    "store": (
        kernels.store_kernel,
        [*[BF16] * 4, I64, *["i32"] * 5],
        {"DIM": 128, "BLOCK_DIM": 128},
        1,
        3,
    ),
    "decode-128": _decode(128, 4, 0, 8),
    "decode-64-window": _decode(64, 3, 100, 1),
    "decode-256": _decode(256, 2, 512, 2),
    "combine": (
        kernels.combine_kernel,
        [BF16, F32, F32, F32, I32],
        {"DIM": 128, "BLOCK_DIM": 128, "SPLITS": 8, "BLOCK_SPLITS": 8},
        1,
        3,
    ),
    "prefill-128": _prefill(128, 4, 0),
    "prefill-64-window": _prefill(64, 3, 100),
    "prefill-256": _prefill(256, 2, 512),
    "norm": (ops._norm_kernel, [*[BF16] * 5, "i32", "fp32"], {"SIZE": 4096, "BLOCK": 4096, "ADD": True}, 8, 3),
    "silu": (ops._gate_kernel, [BF16, BF16], {"INNER": 14_336, "BLOCK": 1024, "SILU": True}, 4, 3),
    "gelu": (ops._gate_kernel, [BF16, BF16], {"INNER": 14_336, "BLOCK": 1024, "SILU": False}, 4, 3),
    "rotate": (
        ops._rotate_kernel,
        [*[BF16] * 5, "i32", "i32", "fp32"],
        {"HALF": 64, "BLOCK": 64, "NORM": True},
        1,
        3,
    ),
}


@pytest.mark.parametrize("capability", list(SHARED_MEMORY))
@pytest.mark.parametrize("case", list(CASES))
def test_a_kernel_compiles(case: str, capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    function, arguments, constants, warps, stages = CASES[case]
    given = iter(arguments)
    signature = {name: "constexpr" if name in constants else next(given) for name in function.arg_names}
    assert not list(given)
    # At launch Triton finds pointers and strides to be multiples of 16 bytes or elements and specialises on it.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(function.arg_names)
        if signature[name].startswith("*") or name.endswith("stride")
    }
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    kernel = triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})
    assert kernel.metadata.shared <= SHARED_MEMORY[capability]
    if case.startswith(("decode", "prefill")):
        assert "async_copy_global_to_local" in kernel.asm["ttgir"]  # K and V are fetched ahead
