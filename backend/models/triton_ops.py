"""The small operations fused for CUDA: one launch each, where torch takes three to eight."""

# Constants of a kernel are written in capitals, as everywhere in Triton, and the language has no types to annotate.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from backend.models.config import Activation

__all__ = ["TritonOps"]

_GATE_BLOCK = 1024


@triton.jit
def _norm_kernel(
    x_ptr, residual_ptr, total_ptr, weight_ptr, out_ptr, stride, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): RMS norm of one row, after adding the residual where there is one."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < SIZE
    x = tl.load(x_ptr + row * stride + lanes, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(residual_ptr + row * SIZE + lanes, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + row * SIZE + lanes, rounded, mask=inside)
        x = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * SIZE + lanes, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate_kernel(gate_up_ptr, out_ptr, INNER: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr):
    """Grid (rows, blocks of the inner size): activation(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lanes < INNER
    gate = tl.load(gate_up_ptr + row * 2 * INNER + lanes, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * INNER + INNER + lanes, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        active = gate * tl.sigmoid(gate)
    else:
        # 0.5 (1 + tanh(z)) = sigmoid(2 z); z of the tanh form of GELU (Hendrycks and Gimpel 2016)
        active = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out_ptr + row * INNER + lanes, (active * up).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rotate_kernel(
    qk_ptr, cos_ptr, sin_ptr, q_norm_ptr, k_norm_ptr, stride, heads, eps, HALF: tl.constexpr, BLOCK: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Grid (tokens, heads + kv_heads): norm and rotation of one head, in place."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < HALF
    at = qk_ptr + token * stride + head * 2 * HALF + lanes
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + eps)
        q_first = tl.load(q_norm_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
        k_first = tl.load(k_norm_ptr + lanes, mask=inside, other=0.0).to(tl.float32)
        q_second = tl.load(q_norm_ptr + HALF + lanes, mask=inside, other=0.0).to(tl.float32)
        k_second = tl.load(k_norm_ptr + HALF + lanes, mask=inside, other=0.0).to(tl.float32)
        first = first * scale * tl.where(head < heads, q_first, k_first)
        second = second * scale * tl.where(head < heads, q_second, k_second)
    cos = tl.load(cos_ptr + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HALF + lanes, mask=inside, other=0.0).to(tl.float32)
    element = qk_ptr.dtype.element_ty
    tl.store(at, (first * cos - second * sin).to(element), mask=inside)
    tl.store(at + HALF, (second * cos + first * sin).to(element), mask=inside)


class TritonOps:
    """Ops in Triton, for CUDA tensors (or CPU tensors under the interpreter)."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        out = torch.empty_like(x)
        self._norm(x, x, x, weight, out, eps, add=False)
        return out

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        out, total = torch.empty_like(x), torch.empty_like(x)
        self._norm(x, residual, total, weight, out, eps, add=True)
        return out, total

    def _norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        total: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        eps: float,
        *,
        add: bool,
    ) -> None:
        size = x.shape[-1]
        block = triton.next_power_of_2(size)
        _norm_kernel[(x.shape[0],)](
            x,
            residual,
            total,
            weight,
            out,
            x.stride(0),
            eps,
            SIZE=size,
            BLOCK=block,
            ADD=add,
            num_warps=min(16, max(1, block // 512)),
        )

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops."""
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
        block = min(_GATE_BLOCK, triton.next_power_of_2(inner))
        _gate_kernel[rows, -(-inner // block)](
            gate_up, out, INNER=inner, BLOCK=block, SILU=activation == "silu", num_warps=4
        )
        return out

    def rotate(
        self,
        qk: torch.Tensor,
        heads: int,
        cos: torch.Tensor,
        sin: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        half = qk.shape[-1] // 2
        normed = q_norm is not None and k_norm is not None
        _rotate_kernel[qk.shape[0], qk.shape[1]](
            qk,
            cos,
            sin,
            q_norm if normed else qk,
            k_norm if normed else qk,
            qk.stride(0),
            heads,
            eps,
            HALF=half,
            BLOCK=triton.next_power_of_2(half),
            NORM=normed,
            num_warps=1,
        )
        return qk[:, :heads], qk[:, heads:]
