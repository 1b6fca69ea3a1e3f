"""The small operations between the matrix products, and which implementation runs them."""

from __future__ import annotations

import importlib.util
from typing import Protocol

import torch
from torch.nn.functional import gelu, rms_norm, silu

from backend.models.config import Activation
from backend.models.rope import rotate
from backend.native.kernels import DTYPES, load_kernels

__all__ = ["Ops", "TorchOps", "choose_ops"]


class Ops(Protocol):
    """Row-wise operations. Norms are root-mean-square norms (Zhang and Sennrich 2019), computed in float32."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise the last axis of x and scale it by weight; the result has x's type."""
        ...

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """norm(residual + x) and residual + x, both [T, hidden]; may reuse the memory of the arguments."""
        ...

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(gate) * up of [T, 2 * inner]; may reuse the memory of its argument."""
        ...

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
        """Normalise (where norms are given) and rotate queries and keys.

        Args:
            qk: [T, heads + kv_heads, dim]; its memory may be reused.
            heads: how many of them are queries.
            cos: [T, 1, dim / 2].
            sin: [T, 1, dim / 2].
            q_norm: [dim] weight of the queries' norm, or None.
            k_norm: [dim] weight of the keys' norm, or None.
            eps: of the norms.

        Returns:
            [T, heads, dim] and [T, kv_heads, dim]
        """
        ...


class TorchOps:
    """Plain torch."""

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        if weight.dtype == x.dtype:
            return rms_norm(x, weight.shape, weight, eps)
        return rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        total = x.add_(residual)
        return self.norm(total, weight, eps), total

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops."""
        gate, up = gate_up.chunk(2, dim=-1)
        gate = silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")
        return gate.mul_(up)

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
        if q_norm is not None and k_norm is not None:
            q, k = self.norm(qk[:, :heads], q_norm, eps), self.norm(qk[:, heads:], k_norm, eps)
            return rotate(q, cos, sin), rotate(k, cos, sin)
        rotated = rotate(qk, cos, sin)
        return rotated[:, :heads], rotated[:, heads:]


def choose_ops(device: torch.device, dtype: torch.dtype) -> Ops:
    """Fused kernels (Triton on a GPU, native ones on a CPU) where they can be had, plain torch elsewhere."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from backend.models.triton_ops import TritonOps

        return TritonOps()
    if device.type == "cpu" and dtype in DTYPES and (kernels := load_kernels()) is not None:
        return kernels
    return TorchOps()
