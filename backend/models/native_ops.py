"""The small operations by native kernels: one pass over the data each, and no intermediate tensors."""

from __future__ import annotations

import torch

from backend.models.ops import Activation
from backend.native.kernels import Kernels

__all__ = ["NativeOps"]


class NativeOps:
    """Ops for float32 and bfloat16 on the CPU."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """See Ops."""
        return self._kernels.norm(x, None, weight, eps)

    def add_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See Ops."""
        return self._kernels.norm(x, residual, weight, eps), x

    def gate(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """See Ops."""
        return self._kernels.gate(gate_up, gelu=activation == "gelu_tanh")

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
        self._kernels.rotate(qk, heads, cos, sin, q_norm, k_norm, eps)
        return qk[:, :heads], qk[:, heads:]
